// This header: a board in host memory that all ranks map, on which ranks in several processes of a host learn what the
// others of their group have called. Each rank compares its call with those made before it, so a mismatch is found
// whatever the GPU does. Ranks whose buffers lie in windows, which are memory that the user has registered, learn of
// each other's windows, map them, and agree whether all could; other ranks wait for nobody.
//
// Threading: one thread at a time.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "cuda/meeting.h"
#include "cuda/phases.h"

namespace tutti::cuda {

class Board final : public Attendee {
 public:
  // Collective. Null where some rank cannot map the memory: `why` says so.
  static Result<std::unique_ptr<Board>> create(Host& host, Port& port, const std::vector<Seat>& seats,
                                               std::string* why);
  ~Board() override;

  Result<bool> pass(const Operation& operation) override;
  Result<bool> come(const Operation& operation, bool is_reachable) override;

  uint64_t called_by(int rank) const override;
  Board* board() override { return this; }
  bool leave() override;
  bool all_have_left() const override;

  // From now on operations on these bytes need no copies, if all ranks' buffers are in windows. Returns the window's
  // number, which is never 0 and never reused.
  Result<uint64_t> open_window(const void* memory, size_t bytes);
  // Waits until the others have unmapped it, at most 2 s. `is_idle`: whether this rank's GPU has done all its work, as
  // far as that can be told: launches of graphs cannot.
  void close_window(uint64_t number, const std::function<bool()>& is_idle);
  // Unmaps other ranks' windows that they have closed. A rank that cannot tell whether its GPU is idle leaves that to
  // come(), close_window() and leave().
  void forget_closed() { forget(Which::kClosed); }

 private:
  struct Page;
  struct Place;
  struct Notice;
  struct Mapped {
    uint64_t number = 0;
    void* memory = nullptr;  // null: it cannot be mapped
  };
  enum class Which { kClosed, kAll };
  enum class Stage { kIdle, kCalled, kJudged };

  Board(Host& host, Port& port, const std::vector<Seat>& seats)
      : host_(host), port_(port), seats_(seats), rank_(host.rank()) {}
  Page& page(int rank) const;
  Notice& notice(int rank) const;
  Result<void> map(const std::string& where);
  Result<bool> call(const Operation& operation, const Notice& notice);
  Result<void> compare() const;
  bool all_have_called() const;
  bool all_are_in_windows() const;
  bool find_place(const void* memory, uint64_t bytes, Place* place) const;
  bool find_buffers(const Operation& operation);
  bool find_address(int rank, const Place& place, char** address);
  bool finish(bool is_reachable);
  void forget(Which which);
  void take_back(size_t place, size_t n, const std::function<bool()>& is_idle);

  Host& host_;
  Port& port_;
  const std::vector<Seat> seats_;
  const int rank_;
  MappedMemory memory_;
  size_t bytes_ = 0;
  uint64_t round_ = 0, slowest_ = 0;  // slowest_: the round that all had done when last looked at
  Stage stage_ = Stage::kIdle;
  Arrivals arrivals_;
  uint64_t last_window_ = 0;
  std::map<std::pair<int, size_t>, Mapped> mapped_;  // other ranks' windows, by rank and place in that rank's list
};

}  // namespace tutti::cuda
