// A network plugin in the layout that NCCL loads, version 8, 9, 10 or 11: a table of functions that send and receive
// registered memory between two processes. Usable from any thread; each connection from one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/result.h"

namespace tutti::net {

// The most requests that a plugin takes at a time on a connection.
inline constexpr uint64_t kMaxRequests = 32;

class Plugin {
 public:
  // A listener's address, for the peer; while connecting, the plugin keeps its own notes there.
  using Handle = std::array<char, 256>;

  // Loads and sets up an object's newest table; null if it has none. An error says what the plugin cannot do here.
  static Result<std::unique_ptr<Plugin>> load(void* object);

  const char* name() const { return table_->name; }
  int n_devices() const { return n_devices_; }
  uint64_t bytes_per_second(int device) const;
  uint32_t latency_ns(int device) const;

  // A listener or an end of a connection, with the function that closes it.
  using Comm = std::unique_ptr<void, int (*)(void*)>;

  // All errors are kRemoteError, whatever the plugin's own.
  Result<Comm> listen(int device, Handle* handle) const;
  Result<Comm> connect(int device, Handle* handle) const;  // null: not yet
  Result<Comm> accept(const Comm& listener) const;         // null: not yet
  Result<void*> pin(void* comm, void* data, size_t bytes) const;
  void unpin(void* comm, void* region) const { table_->unpin(comm, region); }
  // A request for test(), or null: not now.
  Result<void*> send(void* comm, void* data, size_t bytes, void* region) const;
  Result<void*> receive(void* comm, void* data, size_t bytes, void* region) const;
  // True: the request is done and exists no longer; for a receive, *bytes have arrived.
  Result<bool> test(void* request, int* bytes) const;

 private:
  // Its type depends on the version.
  using Function = void (*)();
  struct Table {
    const char* name;
    Function set_up;
    int (*count_devices)(int* n);
    int (*properties)(int device, void* properties);
    Function listen, connect;
    int (*accept)(void* listener, void** comm, void** unused);
    int (*pin)(void* comm, void* data, size_t bytes, int kind, void** region);
    Function pin_dmabuf;
    int (*unpin)(void* comm, void* region);
    Function send, receive, flush;
    int (*test)(void* request, int* done, int* bytes);
    int (*close_sender)(void* comm);
    int (*close_receiver)(void* comm);
    int (*close_listener)(void* comm);
  };
  // Large enough for the properties of every version.
  struct Properties {
    const char *name, *pci_path;
    uint64_t guid;
    std::array<int32_t, 128> numbers;
  };

  Plugin(const Table* table, int version) : table_(table), version_(version) {}
  Result<void> set_up();
  Properties properties(int device) const;
  size_t speed_at() const { return version_ == 8 ? 2 : 3; }
  Result<void> check(const char* what, int result) const;

  const Table* table_;
  int version_;
  void* context_ = nullptr;  // for version 11 only
  int n_devices_ = 0;
};

}  // namespace tutti::net
