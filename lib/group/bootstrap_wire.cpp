#include "group/bootstrap_wire.h"

#include <unistd.h>

#include <cstring>

#include "base/bytes.h"

namespace tutti {

std::string make_frame(FrameKind kind, std::string_view body, int rank) {
  std::string frame = ByteWriter().put(FrameHeader{kind, rank, body.size()}).take();
  frame.append(body);
  return frame;
}

uint64_t root_door(const Key& key) {
  const Key door = derive_key(key.data(), key.size());
  uint64_t number;
  memcpy(&number, door.data(), sizeof number);
  return number;
}

JoinMessage make_join(int rank, int n_ranks, int left_ms) {
  return {rank, n_ranks, getpid(), left_ms, host_name()};
}

std::string make_join_frame(const JoinMessage& join, FrameKind kind) {
  const std::string body =
      ByteWriter().all(join.rank, join.n_ranks, join.pid, join.left_ms, join.host, join.contact).take();
  return make_frame(kind, body, join.rank);
}

std::optional<JoinMessage> read_join(const std::string& body) {
  ByteReader r(body);
  JoinMessage join{};
  r.all(join.rank, join.n_ranks, join.pid, join.left_ms, join.host, join.contact);
  const bool can_be = join.n_ranks >= 1 && join.n_ranks <= kMaxRanks && join.rank >= 0 && join.rank < join.n_ranks;
  return r.ok() && r.at_end() && can_be ? std::optional(join) : std::nullopt;
}

std::string who_is(const JoinMessage& join) {
  return format("host %.63s pid %d", join.host.c_str(), join.pid);
}

std::string pack_report(const Error& error) {
  return ByteWriter().all(error.code, error.culprit_rank).take() + error.message;
}

Error unpack_report(const std::string& body) {
  int32_t front[2];
  if (body.size() < sizeof front) return Error{Code::kInternalError, "the group's root sent a damaged report"};
  memcpy(front, body.data(), sizeof front);
  const bool known = front[0] > static_cast<int>(Code::kSuccess) && front[0] <= static_cast<int>(Code::kTimeout);
  return Error{known ? static_cast<Code>(front[0]) : Code::kInternalError, body.substr(sizeof front), front[1]};
}

std::string rank_list(const std::vector<int>& ranks) {
  constexpr int kMaxRanges = 32;
  std::string text;
  int ranges = 0;
  for (size_t i = 0; i < ranks.size();) {
    if (++ranges > kMaxRanges) return text + format(" and %zu more", ranks.size() - i);
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) last++;
    if (!text.empty()) text += ", ";
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string FrameReader::take_body() {
  header_got_ = body_got_ = 0;
  return std::exchange(body_, {});
}

}  // namespace tutti
