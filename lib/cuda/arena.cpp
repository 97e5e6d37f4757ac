#include "cuda/arena.h"

#include <utility>

#include "base/bytes.h"

namespace tutti::cuda {
namespace {

uint32_t sample_of(int from, int to) {
  return 0x5a000000u + static_cast<uint32_t>(from * 1009 + to);
}

}  // namespace

Result<std::unique_ptr<Arenas>> Arenas::create(Host& host, Port& port, const std::vector<Seat>& seats,
                                               size_t more_bytes, std::string* why) {
  std::unique_ptr<Arenas> arenas(new Arenas(host, port));
  IpcHandle handle;
  const auto shared = [&]() -> Result<void> {
    TUTTI_TRY(arenas->allocate(more_bytes));
    if (!seats[static_cast<size_t>(host.rank())].info.waits_in_streams) return Error{Code::kCudaError, kNoWaits};
    if (are_in_one_process(seats)) return {};
    TUTTI_TRY_ASSIGN(handle, port.share(arenas->own_));
    return {};
  }();
  // Agreed on first, so that `why` names the rank that has nothing to share, not one that cannot map it.
  TUTTI_TRY_ASSIGN(*why, agree(host, shared));
  if (!why->empty()) return std::unique_ptr<Arenas>();
  TUTTI_TRY_ASSIGN(const auto handles, tell_all(host, ByteWriter().put(handle).put(arenas->own_).take()));
  TUTTI_TRY_ASSIGN(*why, agree(host, arenas->map_all(seats, handles)));
  for (const auto step : {&Arenas::write_samples, &Arenas::compare_samples, &Arenas::clear_samples})
    if (why->empty()) {
      TUTTI_TRY_ASSIGN(*why, agree(host, (arenas.get()->*step)()));
    }
  if (why->empty()) return arenas;
  for (void* memory : std::exchange(arenas->mapped_, {})) port.unmap(memory);
  TUTTI_TRY(tell_all(host, "unmapped"));  // CUDA forbids to free what others have mapped
  return std::unique_ptr<Arenas>();
}

// Other ranks of a broken group may still be writing to this arena and cannot be waited for, so it is leaked.
Arenas::~Arenas() {
  for (void* memory : mapped_) port_.unmap(memory);
  if (void* memory = give_up()) port_.free(memory);
  if (sample_ != nullptr) port_.free_host(sample_);
  if (stream_ != nullptr) port_.destroy_stream(stream_);
}

void* Arenas::give_up() {
  void* const memory = std::exchange(own_, nullptr);
  return host_.broken() ? nullptr : memory;
}

Result<void> Arenas::allocate(size_t more_bytes) {
  TUTTI_TRY_ASSIGN(stream_, port_.create_stream(true));
  TUTTI_TRY_ASSIGN(
      own_, port_.allocate(kTwoHopOffset + two_hop_room_bytes(static_cast<uint32_t>(host_.n_ranks())) + more_bytes));
  TUTTI_TRY_ASSIGN(void* sample, port_.allocate_host(sizeof(uint32_t) * (kMaxPlaces + 1)));
  sample_ = static_cast<uint32_t*>(sample);
  return {};
}

Result<void> Arenas::map_all(const std::vector<Seat>& seats, const std::vector<std::string>& handles) {
  const Seat& mine = seats[static_cast<size_t>(host_.rank())];
  for (size_t r = 0; r < seats.size(); r++) {
    const Seat& seat = seats[r];
    ByteReader reader(handles[r]);
    const auto handle = reader.get<IpcHandle>();
    void* memory = reader.get<void*>();
    if (seat.process == mine.process) {
      if (seat.info.uuid != mine.info.uuid) TUTTI_TRY(port_.reach(seat.device));
    } else {
      auto mapped = port_.map(handle);
      if (!mapped)
        return Error{mapped.error().code,
                     format("the memory of rank %zu cannot be mapped: %s", r, mapped.error().message.c_str())};
      memory = mapped.value();
      mapped_.push_back(memory);
    }
    arenas_.push_back(memory);
  }
  return {};
}

// Every rank writes a word of its own to all others, as its streams do later.
Result<void> Arenas::write_samples() {
  std::vector<WordOperation> words;
  for (int r = 0; r < host_.n_ranks(); r++) words.push_back({word(r, 0, host_.rank()), sample_of(host_.rank(), r)});
  TUTTI_TRY(port_.words(words.data(), static_cast<int>(words.size()), stream_));
  return port_.synchronize(stream_);
}

// Reads what arrived here, and the others' words in their own memory: both directions have to work.
Result<void> Arenas::compare_samples() {
  const int me = host_.rank();
  for (const bool there : {false, true}) {
    for (int r = 0; r < host_.n_ranks(); r++)
      TUTTI_TRY(port_.copy(sample_ + r, there ? word(r, 0, r) : word(me, 0, r), sizeof(uint32_t), stream_));
    TUTTI_TRY(port_.synchronize(stream_));
    for (int r = 0; r < host_.n_ranks(); r++)
      if (sample_[r] != sample_of(r, there ? r : me))
        return Error{
            Code::kCudaError,
            format(
                "%08x was read where rank %d wrote %08x: IOMMU or ACS settings may keep GPUs from reaching each other",
                sample_[r], r, sample_of(r, there ? r : me))};
  }
  return {};
}

// Waiting has to work, too. The words are already there, so it cannot block.
Result<void> Arenas::clear_samples() {
  const int me = host_.rank();
  std::vector<WordOperation> words;
  for (int r = 0; r < host_.n_ranks(); r++) words.push_back({word(me, 0, r), sample_of(r, me), true});
  for (int r = 0; r < host_.n_ranks(); r++) words.push_back({word(me, 0, r), 0});
  TUTTI_TRY(port_.words(words.data(), static_cast<int>(words.size()), stream_));
  return port_.synchronize(stream_);
}

Result<void> Arenas::meet(int stage, const std::vector<int>& ranks, StreamRef stream) {
  std::vector<WordOperation> words;
  const auto for_others = [&](auto&& make) {
    for (const int me : ranks)
      for (int k = 1; k < host_.n_ranks(); k++) {
        const int other = (me + k) % host_.n_ranks();
        if (std::find(ranks.begin(), ranks.end(), other) == ranks.end()) words.push_back(make(me, other));
      }
  };
  for_others([&](int me, int r) { return WordOperation{word(r, stage, me), 1}; });
  for_others([&](int me, int r) { return WordOperation{word(me, stage, r), 1, true}; });
  for_others([&](int me, int r) { return WordOperation{word(me, stage, r), 0}; });
  return port_.words(words.data(), static_cast<int>(words.size()), stream);
}

// A user takes its buffers back when its stream has ended. By then all ranks have heard of the failure, which takes
// some milliseconds, so that none begins what works in others' buffers, and what has begun is over.
void Arenas::release_waits() {
  constexpr double kPatienceSeconds = 0.1;
  if (!patience_) patience_ = Deadline::after_seconds(kPatienceSeconds);
  __atomic_store_n(abort_word(), 1, __ATOMIC_RELEASE);
  std::vector<WordOperation> words = {{stop_word(), 1}};
  for (int stage = 0; stage < kStages && patience_->passed(); stage++)
    for (size_t r = 0; r < arenas_.size(); r++) words.push_back({word(rank_, stage, static_cast<int>(r)), 1});
  (void)port_.words(words.data(), static_cast<int>(words.size()), stream_);
  (void)port_.synchronize(stream_);
}

}  // namespace tutti::cuda
