// A connection without a socket between two ranks of one process, which find each other by a name: bytes in both
// directions, each end wakes the other, and end of file when the other end is closed. Any thread.
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
  // Called when something arrives. What came before this end was made is not announced: read once after making it.
  // Called with the pipe locked, so it must not block.
  using Wake = std::function<void()>;

  // This rank's end of the only pipe with `peer` in this group, or link. The first of the two creates the pipe, and the
  // second finds what the first has written; nothing if the first has left again by then.
  LocalPipe(uint64_t group, int rank, int peer, Wake wake);
  ~LocalPipe();
  LocalPipe(const LocalPipe&) = delete;
  LocalPipe& operator=(const LocalPipe&) = delete;

  bool has_met() const;  // whether the other end is there, or was
  // What both ends use: the thing of whichever calls this first.
  std::shared_ptr<void> agree_on(std::shared_ptr<void> mine);

  // There is always room; bytes for a closed end are discarded.
  void write(std::string_view bytes);
  // As recv(2) without blocking.
  ssize_t read(void* to, size_t most);

  struct Shared;  // the pipe itself, owned by both ends

 private:
  std::shared_ptr<Shared> shared_;
  size_t side_;
};

}  // namespace tutti
