// How communicators are created, at once or in the background.
#pragma once

#include <cstring>
#include <vector>

#include "api/handle.h"

namespace tutti::api {

struct Config {
  CommOptions options;
  bool blocking = true;

  Deadline deadline() const { return Deadline::after_seconds(options.init_timeout_seconds); }
};

inline UniqueId to_unique_id(const tuttiUniqueId& id) {
  UniqueId unique_id;
  static_assert(sizeof unique_id.bytes == sizeof id.internal);
  memcpy(unique_id.bytes, id.internal, sizeof unique_id.bytes);
  return unique_id;
}

// The user's options; those left undefined come from the environment.
Result<Config> read_config(const tuttiConfig_t* config);
// Checks a CUDA device number and writes it to options.cuda_device; -1 is host memory.
Result<void> take_cuda_device(int value, const std::string& name, int* to);

// Creates a communicator and its handle: now, at the end of the group, or in the background. `begin` runs right before
// the creation; if that is in the background, before this returns. With a null `handle` this rank takes part, but gets
// no communicator. `from`: the communicator that it is made from, which may be destroyed before the group ends.
Result<void> create(tuttiComm_t* handle, const Config& config, Member::Creation creation,
                    std::function<void()> begin = nullptr, tuttiComm_t from = nullptr);

// A communicator from which another one is made, and the turns on it that this takes.
struct Source : std::enable_shared_from_this<Source> {
  Source(tuttiComm_t its_handle, Use its_comm, Config its_config, size_t n_turns)
      : handle(its_handle), comm(std::move(its_comm)), config(std::move(its_config)), tickets(n_turns) {}

  tuttiComm_t handle;
  Use comm;
  Config config;  // the user's options; those left undefined come from `comm`, not from the environment
  std::vector<uint64_t> tickets;

  // Runs `creation`. It fails soon after tuttiCommAbort of `comm`, which waits for it; and, given `members`, ranks of
  // `comm`, when patience_ns() is over.
  Result<std::unique_ptr<Communicator>> make(const Deadline& deadline, const Member::Creation& creation,
                                             const std::vector<int>& members = {}) const;
  // How long `members` may still take to form their group: a second once one of them is lost or `comm` was revoked, 20
  // once it has failed because another rank was lost: those that have not begun yet are refused.
  // INT64_MAX: as long as they like.
  int64_t patience_ns(const std::vector<int>& members) const;
};
Result<std::shared_ptr<Source>> source_of(tuttiComm_t comm, const tuttiConfig_t* config, size_t n_turns);
// As create(); the tickets are taken when the creation begins, after `first`.
Result<void> create_from(const std::shared_ptr<Source>& source, tuttiComm_t* handle, Member::Creation creation,
                         const std::function<void()>& first = nullptr);

}  // namespace tutti::api
