#include "comm/comparison.h"

#include <algorithm>

#include "base/bytes.h"

namespace tutti {
namespace {

// The same as far as the user says: a choice of algorithm may be under way.
bool is_same_request(const Call& a, const Call& b) {
  return a.collective == b.collective && a.count == b.count && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.blocks == b.blocks;
}

}  // namespace

void Comparison::add(const Call& call, std::shared_ptr<const Operation::Unequal> blocks) {
  const std::lock_guard lock(mutex_);
  const size_t last = (next_ + records_.size() - 1) % records_.size();
  if (records_[last].call.sequence == call.sequence) next_ = last;
  records_[next_] = {call, std::move(blocks)};
  next_ = (next_ + 1) % records_.size();
}

const Comparison::Record* Comparison::find(uint64_t sequence) const {
  const auto found =
      std::find_if(records_.begin(), records_.end(), [&](const Record& r) { return r.call.sequence == sequence; });
  return found != records_.end() && found->blocks != nullptr ? &*found : nullptr;
}

Comparison::Told Comparison::tell(const Call& call) const {
  const Record* record = find(call.sequence);
  if (record == nullptr) return {rank_, call, {}};
  const auto& elems = record->blocks->elems;
  return {rank_, call, {elems.begin(), elems.begin() + static_cast<long>(std::min(elems.size(), kMostBlocks))}};
}

std::string Comparison::to_bytes(const Told& told, Kind kind) {
  static_assert(sizeof kind + sizeof(int32_t) + sizeof(TagWords) + kMostBlocks * sizeof(uint64_t) <=
                PeerWatch::kMostQuestionBytes);
  ByteWriter writer;
  writer.put(kind).put(static_cast<int32_t>(told.rank)).put(to_tag(told.call));
  for (const uint64_t elems : told.blocks) writer.put(elems);
  return writer.take();
}

std::optional<Comparison::Told> Comparison::from_bytes(std::string_view bytes, Kind* kind) const {
  ByteReader reader(bytes);
  *kind = reader.get<Kind>();
  Told told;
  told.rank = reader.get<int32_t>();
  const auto tag = reader.get<TagWords>();
  while (reader.ok() && !reader.at_end()) told.blocks.push_back(reader.get<uint64_t>());
  const bool is_kind = *kind == Kind::kQuestion || *kind == Kind::kStatement;
  if (!reader.ok() || !is_kind || told.rank < 0 || told.rank >= n_ranks_) return {};
  told.call = from_tag(tag);
  if (static_cast<int>(told.call.collective) >= kCollectives) return {};
  return told;
}

std::string Comparison::question(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const Record* record = find(sequence);
  if (record == nullptr || asked_) return {};
  asked_ = tell(record->call);
  return to_bytes(*asked_, Kind::kQuestion);
}

std::string Comparison::statement(const Call& call) {
  const std::lock_guard lock(mutex_);
  return to_bytes(tell(call), Kind::kStatement);
}

std::optional<PeerWatch::Answer> Comparison::hear(std::string_view bytes) {
  Kind kind{};
  auto told = from_bytes(bytes, &kind);
  if (!told) return {};
  const std::lock_guard lock(mutex_);
  if (kind == Kind::kQuestion) return answer(std::move(*told));
  stated_[told->rank] = *told;
  has_statements_.store(true, std::memory_order_release);
  return PeerWatch::Answer{};
}

// The first question goes to all ranks. So a later one meets it somewhere, and if it differs, there.
PeerWatch::Answer Comparison::answer(Told theirs) {
  PeerWatch::Answer answer{{}, !asked_};
  const auto compare = [&](const Told& known) {
    if (answer.error || !differ_in_blocks(known.call, theirs.call)) return;
    answer = {disagreement(known.rank, known.call, known.blocks, theirs.rank, theirs.call, theirs.blocks), false};
  };
  if (const Record* record = find(theirs.call.sequence)) compare(tell(record->call));
  if (asked_) compare(*asked_);
  if (!asked_) asked_ = std::move(theirs);
  return answer;
}

// One that this rank has yet to call is kept.
Result<void> Comparison::check(const History& history) {
  if (!has_statements_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(mutex_);
  for (auto stated = stated_.begin(); stated != stated_.end();) {
    const auto& [rank, theirs] = *stated;
    const Call mine = history.find(theirs.call.sequence);
    if (mine.sequence != 0 && !is_same_request(mine, theirs.call))
      return disagreement(rank_, mine, tell(mine).blocks, rank, theirs.call, theirs.blocks);
    stated = mine.sequence != 0 ? stated_.erase(stated) : std::next(stated);
  }
  has_statements_.store(!stated_.empty(), std::memory_order_release);
  return {};
}

}  // namespace tutti
