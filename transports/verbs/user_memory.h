// The user's registered memory, as registered with the ports: from its first use until its registration ends or too
// much is registered (TUTTI_IB_PIN_BYTES). Belongs to an endpoint and its thread.
#pragma once

#include <map>
#include <memory>

#include "transports/verbs/port.h"
#include "tutti/transport.h"

namespace tutti::verbs {

class UserMemory {
 public:
  UserMemory(const tuttiEndpointConfig& config, const Ports& ports, uint64_t most_bytes)
      : config_(config), ports_(ports), most_bytes_(most_bytes) {}
  // What lets the ports move these bytes from or to where they are; null if they must be copied. Stays registered with
  // the ports while anybody holds it.
  std::shared_ptr<const Pinned> find(const void* data, size_t bytes);
  // Success if find() gives that now, or why the bytes must be copied.
  Result<void> check(const void* data, size_t bytes);

 private:
  struct Entry {
    uintptr_t begin = 0, end = 0;
    std::shared_ptr<const Pinned> pinned;  // null: it cannot be registered
    std::string why_not;
    uint64_t last_use = 0;
  };
  Entry* look_up(const void* data, size_t bytes);
  Result<Pinned> pin(uint64_t number, const Entry& entry) const;
  void forget_removed();
  void make_room(uint64_t bytes);

  const tuttiEndpointConfig config_;
  const Ports& ports_;
  const uint64_t most_bytes_;
  std::map<uint64_t, Entry> entries_;  // by the registration's number
  Entry* last_ = nullptr;
  uint64_t bytes_ = 0, uses_ = 0, removals_seen_ = 0;
};

}  // namespace tutti::verbs
