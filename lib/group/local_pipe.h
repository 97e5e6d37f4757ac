// A control connection between two ranks of one process: bytes in both directions, and the news that the other end was
// closed, without a socket. Any thread; each end belongs to one line.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tutti {

class LocalPipe {
 public:
  // Something has come, after the end was made: look once then. Called with the pipe locked: it may wait for nothing.
  using Wake = std::function<void()>;

  // This rank's end of the only pipe with `peer` in this group. Whoever comes first makes it, and the other one finds
  // what he wrote; if he has left again by then, nothing.
  LocalPipe(uint64_t group, int rank, int peer, Wake wake);
  ~LocalPipe();
  LocalPipe(const LocalPipe&) = delete;
  LocalPipe& operator=(const LocalPipe&) = delete;

  // As send(2) and recv(2) without blocking; there is always room.
  ssize_t write(const char* data, size_t n);
  ssize_t read(char* data, size_t most);

  struct Shared;  // by both ends

 private:
  std::shared_ptr<Shared> shared_;
  size_t side_;
};

}  // namespace tutti
