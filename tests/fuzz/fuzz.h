// Shared by the fuzz targets. A target is one program: it turns bytes into calls and checks what must hold whatever
// the bytes are. replay.cpp drives it in the daily suite, clang's libFuzzer where it is available.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);
// Initial inputs: what a well-behaved caller or peer does.
std::vector<std::string> fuzz_seeds();

namespace tutti::fuzz {

inline void expect(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "this does not hold: %s\n", what);
  abort();
}

// Takes values from the front of the bytes; zeros when they are used up.
class Input {
 public:
  Input(const uint8_t* data, size_t bytes) : rest_(reinterpret_cast<const char*>(data), bytes) {}
  explicit Input(std::string_view bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }
  std::string_view text(size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() { return text(rest_.size()); }
  template <class T>
  T take() {
    T value{};
    const std::string_view bytes = text(sizeof value);
    memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  uint8_t byte() { return take<uint8_t>(); }
  size_t below(size_t n) { return byte() % n; }

 private:
  std::string_view rest_;
};

// As much as the kernel accepts at once.
inline void say(const Fd& fd, std::string_view bytes) {
  [[maybe_unused]] const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

struct SocketPair {
  explicit SocketPair(int type = SOCK_STREAM) {
    int ends[2];
    expect(socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "there is a socket pair");
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
  }
  // Sends bytes as the peer.
  void say(std::string_view bytes) const { fuzz::say(theirs, bytes); }
  void hang_up() const { ::shutdown(theirs.get(), SHUT_WR); }

  Fd ours, theirs;
};

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace tutti::fuzz
