// A file descriptor that closes itself. Move-only. Its number is above 2: where the program has closed stdin, stdout or
// stderr, what is written to them must not reach the library's sockets and memory.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/at_fork.h"

namespace tutti {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(above_streams(fd)) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) close_descriptor(fd_);
    fd_ = above_streams(fd);
  }

 private:
  int fd_ = -1;
};

struct Unmap {
  size_t bytes = 0;
  void operator()(char* base) const { munmap(base, bytes); }
};
using MappedMemory = std::unique_ptr<char, Unmap>;

// Null on failure, with errno set.
inline MappedMemory map_shared(const Fd& file, uint64_t offset, size_t bytes, bool writes) {
  void* const base = mmap(nullptr, bytes, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file.get(),
                          static_cast<off_t>(offset));
  return MappedMemory(base == MAP_FAILED ? nullptr : static_cast<char*>(base), Unmap{bytes});
}

// A list of just this one.
inline std::vector<Fd> only(Fd fd) {
  std::vector<Fd> list;
  list.push_back(std::move(fd));
  return list;
}

}  // namespace tutti
