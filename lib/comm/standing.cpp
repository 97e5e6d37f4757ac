#include "comm/standing.h"

#include <algorithm>

#include "base/places.h"

namespace tutti {
namespace {

// Longer than the news of a free slot takes to arrive.
constexpr int64_t kSettledNs = 300'000'000;
constexpr size_t kMostAwaited = 16;
constexpr size_t kCountBytes = sizeof(int32_t) + 2 * sizeof(uint64_t);
constexpr size_t kAwaitedBytes = 3 * sizeof(uint8_t) + sizeof(int32_t) + 2 * sizeof(uint64_t);
constexpr size_t kMostPlaceText = kMostPlaceBytes + 3;
constexpr size_t kHeadBytes = 2 * sizeof(uint8_t) + sizeof(TagWords) + sizeof(uint64_t) + 5 * sizeof(uint32_t);

// Whether one rank needs something that the other begins only after its current operation.
enum class Bond : uint8_t { kNone, kSeeming, kCertain };

std::optional<Standing::Count> count_with(const Standing& one, int peer) {
  const auto found = one.counts.find(peer);
  if (found != one.counts.end()) return found->second;
  return one.counts_all ? std::optional(Standing::Count()) : std::nullopt;
}

// Whether `one` cannot end its call before the other rank has begun its own.
bool call_needs(const Standing& one, int other) {
  const Call& call = one.call;
  const auto block = [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    return call.blocks == 0 ? call.count : r < one.blocks.size() ? one.blocks[r] : 0;
  };
  switch (call.collective) {
    case Collective::kBarrier:
    case Collective::kFinalize: return true;
    case Collective::kAllReduce:
    case Collective::kAllReduceQuantized:
    case Collective::kAllToAll: return call.count > 0;
    case Collective::kAllGather: return block(other) > 0;
    case Collective::kReduceScatter: return block(one.rank) > 0;
    case Collective::kBroadcast:
    case Collective::kScatter: return call.count > 0 && call.root == other && call.root != one.rank;
    case Collective::kReduce:
    case Collective::kGather: return call.count > 0 && call.root == one.rank;
    case Collective::kNone:
    case Collective::kSendRecv: break;
  }
  return false;
}

bool has_left(const Standing& one) {
  return one.doing == Standing::Doing::kLeft;
}

Bond wait_for_call(const Standing& one, const Standing& other) {
  if (other.call.sequence >= one.call.sequence) return Bond::kNone;
  const auto awaits_it = [&](bool sends) {
    return std::any_of(one.awaited.begin(), one.awaited.end(),
                       [&](const AwaitedMessage& a) { return a.sends == sends && a.peer == other.rank; });
  };
  if (call_needs(one, other.rank) || awaits_it(false)) return Bond::kCertain;
  return has_left(other) && awaits_it(true) ? Bond::kSeeming : Bond::kNone;
}

// The first message that `one` waits for and whose counterpart the other rank has not begun.
const AwaitedMessage* message_missed(const Standing& one, const Standing& other, bool sends) {
  const auto count = count_with(other, one.rank);
  if (!count) return nullptr;
  const auto found = std::find_if(one.awaited.begin(), one.awaited.end(), [&](const AwaitedMessage& a) {
    return a.sends == sends && a.peer == other.rank && (!sends || a.has_link || has_left(other)) &&
           (sends ? count->received : count->sent) < a.call.sequence;
  });
  return found == one.awaited.end() ? nullptr : &*found;
}

Bond bond(const Standing& one, const Standing& other) {
  if (other.doing == Standing::Doing::kOther) return Bond::kNone;
  if (one.doing == Standing::Doing::kCalls) return wait_for_call(one, other);
  if (one.doing != Standing::Doing::kPasses) return Bond::kNone;
  if (message_missed(one, other, false) != nullptr) return Bond::kCertain;
  return message_missed(one, other, true) != nullptr ? Bond::kSeeming : Bond::kNone;
}

bool is_settled(const Standing& sender, const Standing& receiver) {
  return sender.heard_ns - (receiver.heard_ns - static_cast<int64_t>(receiver.idle_ns)) >= kSettledNs;
}

bool is_certain(const Standing& one, const Standing& other) {
  const Bond found = bond(one, other);
  return found == Bond::kCertain || (found == Bond::kSeeming && is_settled(one, other));
}

// "rank 0 called Recv(count=4, int32, peer=1), message 3 from rank 1, which has begun only 2 matching Send".
// "Begun", because a rank may have called more in a group.
std::string text_of(const Standing& one, const Standing& other) {
  if (one.doing == Standing::Doing::kCalls)
    return format("rank %d called %s%s, but rank %d has begun %lu", one.rank, to_text(one.call).c_str(),
                  one.place.c_str(), other.rank, other.call.sequence);
  const AwaitedMessage* awaited = message_missed(one, other, false);
  const bool sends = awaited == nullptr;
  if (sends) awaited = message_missed(one, other, true);
  std::string text = format("rank %d called %s(count=%lu, %s, peer=%d)", one.rank, sends ? "Send" : "Recv",
                            awaited->call.count, dtype_name(awaited->call.dtype), other.rank) +
                     one.place;
  if (one.passed_at_once > 1) text += format(" as one of %u messages of an AlltoAllv or a group", one.passed_at_once);
  const auto count = count_with(other, one.rank);
  return text + format(", message %lu %s rank %d, which has begun only %lu matching %s", awaited->call.sequence,
                       sends ? "to" : "from", other.rank, sends ? count->received : count->sent,
                       sends ? "Recv" : "Send");
}

// Each rank of the path waits for the next one.
Error deadlock(const std::vector<const Standing*>& path) {
  constexpr size_t kMostNamed = 4;
  std::string text;
  for (size_t i = 0; i + 1 < path.size() && i < kMostNamed; i++)
    text += (i == 0 ? "" : "; ") + text_of(*path[i], *path[i + 1]);
  if (path.size() - 1 > kMostNamed) text += format("; and so on, %zu ranks in total", path.size() - 1);
  if (const Standing& left = *path.back(); has_left(left))
    return {Code::kRemoteError,
            format("rank %d finalized or destroyed its communicator after %lu operations, so what the others wait "
                   "for will never happen: %s",
                   left.rank, left.call.sequence, text.c_str()),
            left.rank};
  return {Code::kInvalidUsage,
          "the ranks disagree and wait for each other: " + text +
              "; all ranks of a communicator must call the same operations in the same order, and each Send needs a "
              "matching Recv",
          path[1]->rank};
}

// The shortest path along `holds` from `mine` to a rank that has left, or back to `mine`.
template <class Holds>
std::vector<const Standing*> circle(const Standing& mine, const Standings& others, Holds&& holds) {
  std::map<int, const Standing*> before;
  std::vector<const Standing*> reached{&mine};
  const auto way_to = [&](const Standing* last) {
    std::vector<const Standing*> way;
    for (const Standing* at = last; at != &mine; at = before.at(at->rank)) way.insert(way.begin(), at);
    way.insert(way.begin(), &mine);
    return way;
  };
  for (size_t i = 0; i < reached.size(); i++) {
    const Standing& one = *reached[i];
    if (i > 0 && holds(one, mine)) {
      auto way = way_to(&one);
      way.push_back(&mine);
      return way;
    }
    if (has_left(one)) return way_to(&one);
    const auto reach = [&](int rank, const Standing& other) {
      if (rank == mine.rank || before.contains(rank) || !holds(one, other)) return;
      before[rank] = &one;
      reached.push_back(&other);
    };
    if (one.doing != Standing::Doing::kPasses) {
      for (const auto& [rank, other] : others) reach(rank, other);
      continue;
    }
    for (const AwaitedMessage& awaited : one.awaited)  // in a long chain each rank waits for few others
      if (const auto other = others.find(awaited.peer); other != others.end()) reach(other->first, other->second);
  }
  return {};
}

}  // namespace

Verdict judge(const Standing& mine, const Standings& others) {
  if (const auto way = circle(mine, others, is_certain); !way.empty()) return {deadlock(way), true};
  const auto seeming = [](const Standing& one, const Standing& other) { return bond(one, other) != Bond::kNone; };
  return {{}, !circle(mine, others, seeming).empty()};
}

std::optional<Error> missed(const Standing& one, const Standing& left) {
  if (!has_left(left) || !is_certain(one, left)) return {};
  return deadlock({&one, &left});
}

void Standing::put(ByteWriter& writer, size_t most_bytes) const {
  const std::string_view shown = std::string_view(place).substr(0, kMostPlaceText);
  const size_t head_bytes = kHeadBytes + shown.size();
  size_t room = most_bytes > head_bytes ? most_bytes - head_bytes : 0;
  const auto fitting = [&room](size_t n, size_t bytes, size_t most) {
    const size_t fits = std::min({n, room / bytes, most});
    room -= fits * bytes;
    return static_cast<uint32_t>(fits);
  };
  const uint32_t n_awaited = fitting(awaited.size(), kAwaitedBytes, kMostAwaited);
  const uint32_t n_blocks = fitting(blocks.size(), sizeof(uint64_t), SIZE_MAX);
  const uint32_t n_counts = fitting(counts.size(), kCountBytes, SIZE_MAX);
  writer.all(doing, counts_all && n_counts == counts.size(), to_tag(call), idle_ns, passed_at_once);
  writer.all(n_awaited, n_blocks, n_counts, shown);
  for (uint32_t i = 0; i < n_awaited; i++) {
    const AwaitedMessage& a = awaited[i];
    writer.all(a.sends, a.has_link, a.call.dtype, a.peer, a.call.sequence, a.call.count);
  }
  for (uint32_t i = 0; i < n_blocks; i++) writer.put(blocks[i]);
  auto count = counts.begin();
  for (uint32_t i = 0; i < n_counts; i++, ++count) writer.all(count->first, count->second.sent, count->second.received);
}

std::optional<Standing> Standing::get(ByteReader& reader, int n_ranks) {
  Standing s;
  TagWords tag;
  uint32_t n_awaited, n_blocks, n_counts;
  reader.all(s.doing, s.counts_all, tag, s.idle_ns, s.passed_at_once, n_awaited, n_blocks, n_counts, s.place);
  s.idle_ns = std::min<uint64_t>(s.idle_ns, INT64_MAX / 2);
  bool is_sound = s.doing <= Doing::kLeft && s.place.size() <= kMostPlaceText;
  const auto is_rank = [&](int32_t rank) { return rank >= 0 && rank < n_ranks; };
  for (uint32_t i = 0; reader.ok() && i < n_awaited; i++) {
    AwaitedMessage& a = s.awaited.emplace_back();
    reader.all(a.sends, a.has_link, a.call.dtype, a.peer, a.call.sequence, a.call.count);
    is_sound = is_sound && is_rank(a.peer) && static_cast<int>(a.call.dtype) < kDataTypes;
  }
  for (uint32_t i = 0; reader.ok() && i < n_blocks; i++) s.blocks.push_back(reader.get<uint64_t>());
  for (uint32_t i = 0; reader.ok() && i < n_counts; i++) {
    const auto peer = reader.get<int32_t>();
    reader.all(s.counts[peer].sent, s.counts[peer].received);
    is_sound = is_sound && is_rank(peer);
  }
  if (!reader.ok() || !is_sound) return {};
  s.call = from_tag(tag);
  if (static_cast<int>(s.call.collective) >= kCollectives) return {};
  return s;
}

}  // namespace tutti
