// Ranks as threads. Catch's assertions are not for threads: a rank's findings are returned, and the test checks them.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "group/bootstrap.h"

namespace tutti::test {

template <class Outcome>
std::vector<Outcome> run_ranks(const std::vector<int>& ranks, const std::function<Outcome(int)>& body) {
  std::vector<Outcome> outcomes(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); i++) threads.emplace_back([&, i] { outcomes[i] = body(ranks[i]); });
  for (std::thread& t : threads) t.join();
  return outcomes;
}

inline std::vector<int> first_ranks(int n) {
  std::vector<int> ranks;
  for (int r = 0; r < n; r++) ranks.push_back(r);
  return ranks;
}

// How a rank ended: an error, or nothing.
struct Fate {
  Code code = Code::kSuccess;
  std::string message;
  int culprit = -1;
};
inline Fate fate_of(const Error& error) {
  return {error.code, error.message, error.culprit_rank};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The loopback address of `id`'s root.
inline Address loopback_of(const UniqueId& id) {
  const auto parts = unpack_unique_id(id);
  auto found = resolve("127.0.0.1", parts.value().addresses.at(0).port());
  return found.value().at(0);
}

// A port that nobody listens at and nobody else gets while `fd` lives; a listener may still take it (SO_REUSEADDR).
struct ReservedPort {
  Fd fd;
  uint16_t port = 0;
};
inline ReservedPort reserve_port() {
  Address address = resolve("127.0.0.1", 0).value().at(0);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0) return {};
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return {std::move(fd), address.port()};
}

}  // namespace tutti::test
