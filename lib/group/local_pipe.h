// A control connection between two ranks of one process: bytes in both directions, and the news that the other end was
// closed, without a socket. Any thread; each end belongs to one line.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

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

  // There is always room; where the other end is closed nobody reads it.
  void write(std::string_view bytes);
  // As recv(2) without blocking.
  ssize_t read(char* data, size_t most);

  struct Shared;  // by both ends

 private:
  std::shared_ptr<Shared> shared_;
  size_t side_;
};

}  // namespace tutti
