// This header: an arena is memory of a rank that all ranks of the group map: words that others write, and room for
// data. Belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cuda/phases.h"

namespace tutti::cuda {

inline constexpr size_t kWordStride = 128;  // each word has its own cache line
// The stages that ranks report to each other, each by one word per rank. Between two meetings at the same stage there
// has to be one at another stage: a rank that has reached that one has reset the words of the one before.
enum Stage : int { kPut = 0, kPutNext = 1, kSummed = 2, kTaken = 3 };
inline constexpr int kStages = 4;
inline constexpr size_t kArenaDataBytes = 32 << 20;

inline bool are_in_one_process(const std::vector<Seat>& seats) {
  return std::all_of(seats.begin(), seats.end(), [&](const Seat& seat) { return seat.process == seats[0].process; });
}

class Arenas {
 public:
  // Collective; see make_phases. `more_bytes`: this rank's, for other purposes.
  static Result<std::unique_ptr<Arenas>> create(Host& host, Port& port, const std::vector<Seat>& seats,
                                                size_t more_bytes, std::string* why);
  ~Arenas();

  char* data(int rank) const { return at(rank) + kDataOffset; }
  // Where `from` tells `rank` that it has reached the stage.
  uint32_t* word(int rank, int stage, int from) const {
    return reinterpret_cast<uint32_t*>(at(rank) + static_cast<size_t>(stage * kMaxPlaces + from) * kWordStride);
  }
  // Room for the lines of all-reduces in one hop or two, and this rank's counts of them.
  char* lines(int rank, int n_hops) const { return at(rank) + (n_hops == 1 ? kOneHopOffset : kTwoHopOffset); }
  uint32_t* epochs(int n_hops) const {
    return reinterpret_cast<uint32_t*>(at(host_.rank()) + kEpochsOffset) + (n_hops == 1 ? 0 : kOneHopBlocks);
  }
  char* more(int rank) const {
    return at(rank) + kTwoHopOffset + two_hop_room_bytes(static_cast<uint32_t>(host_.n_ranks()));
  }
  // Not 0: kernels of this rank give up waiting.
  uint32_t* abort_word() const { return sample_ + kMaxPlaces; }
  // The same for kernels that do not wait, which would look for it in host memory in each of their blocks.
  uint32_t* stop_word() const { return word(rank_, kStages, 0); }
  // In the stream of these ranks: tells all others that they have reached the stage, and waits for all others.
  Result<void> meet(int stage, const std::vector<int>& ranks, StreamRef stream);
  // Passes this rank's own memory to the caller, to free; null if it must be leaked.
  void* give_up();
  // Sets all words that this rank waits for, beginning some time after the first call, when no other rank's kernels
  // touch this one's buffers any more. Waits for the device. Uses no host, which may be gone.
  void release_waits();

 private:
  static constexpr size_t kDataOffset = (kStages * kMaxPlaces + 1) * kWordStride;  // behind stop_word()
  static constexpr size_t kOneHopOffset = kDataOffset + kArenaDataBytes;
  static constexpr size_t kEpochsOffset = kOneHopOffset + kOneHopRoomBytes;
  static constexpr size_t kTwoHopOffset = kEpochsOffset + 512;
  static_assert((kOneHopBlocks + kTwoHopBlocks) * sizeof(uint32_t) <= 512);

  Arenas(Host& host, Port& port) : host_(host), port_(port), rank_(host.rank()) {}
  char* at(int rank) const { return static_cast<char*>(arenas_[static_cast<size_t>(rank)]); }
  Result<void> allocate(size_t more_bytes);
  Result<void> map_all(const std::vector<Seat>& seats, const std::vector<std::string>& handles);
  Result<void> write_samples();
  Result<void> compare_samples();
  Result<void> clear_samples();

  Host& host_;
  Port& port_;
  const int rank_;
  std::vector<void*> arenas_, mapped_;
  void* own_ = nullptr;
  StreamRef stream_ = nullptr;
  uint32_t* sample_ = nullptr;        // in host memory: a word for each rank, and abort_word()
  std::optional<Deadline> patience_;  // before waits are released
};

}  // namespace tutti::cuda
