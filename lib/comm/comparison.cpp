#include "comm/comparison.h"

#include <algorithm>

namespace tutti {

void Comparison::add(const Call& call, std::shared_ptr<const Operation::Unequal> blocks) {
  const std::lock_guard lock(mutex_);
  blocks_.emplace_back(call.sequence, std::move(blocks));
  if (blocks_.size() > kMostKept) blocks_.pop_front();
}

Account Comparison::tell(const Call& call) const {
  Account told{gossip_.rank, call, {}, recorder_.memory().place_text(call.sequence)};
  const auto is_its = [&](const auto& kept) { return kept.first == call.sequence; };
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), is_its);
  if (found == blocks_.end()) return told;
  const auto& elems = found->second->elems;
  told.blocks.assign(elems.begin(), elems.begin() + static_cast<long>(std::min(elems.size(), kMostBlocks)));
  return told;
}

std::string Comparison::question(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const Call mine = recorder_.memory().find(sequence);
  if (mine.sequence == 0 || asked_) return {};
  asked_ = tell(mine);
  static_assert(Gossip::kHeadBytes + sizeof(TagWords) + 2 * sizeof(uint32_t) + kMostPlaceBytes + 3 +
                    kMostBlocks * sizeof(uint64_t) <=
                Ending::kMostQuestionBytes);
  return gossip_.begin(Gossip::Kind::kBlocks).all(to_tag(asked_->call), asked_->place, asked_->blocks).take();
}

std::string Comparison::statement(const Standing& mine, Gossip::Kind kind) {
  ByteWriter writer = gossip_.begin(kind);
  mine.put(writer, Ending::kMostQuestionBytes - Gossip::kHeadBytes);
  return writer.take();
}

std::string Comparison::farewell(const Standing& mine) {
  const std::lock_guard lock(mutex_);
  return statement(mine, Gossip::Kind::kStatement);
}

Result<std::string> Comparison::look(Standing mine) {
  const std::lock_guard lock(mutex_);
  mine.heard_ns = now_ns();
  mine.blocks = tell(mine.call).blocks;
  if (said_.begun != mine.begun) said_ = {.begun = mine.begun};
  Verdict verdict = judge(mine, stated_);
  if (verdict.error) return *std::move(verdict.error);
  const auto kind = due(mine, verdict.seems);
  return kind ? statement(mine, *kind) : std::string();
}

// Neighbours are told soon; a rank that has waited long for messages tells all ranks. It tells all again while ranks
// seem to wait for each other, or after a peer that has not taken its message has stated its own operation: such
// statements count only if the sender still waits.
std::optional<Gossip::Kind> Comparison::due(const Standing& mine, bool seems_stuck) {
  constexpr int64_t kLongNs = 400'000'000, kAgainNs = 100'000'000;
  const bool is_long = static_cast<int64_t>(mine.idle_ns) >= gossip_.pause_ns(kLongNs);
  const auto is_news = [&](const AwaitedMessage& a) {
    const auto stated = stated_.find(a.peer);
    return a.sends && stated != stated_.end() && stated->second.heard_ns > said_.last_ns;
  };
  const bool passes = mine.doing == Standing::Doing::kPasses;
  const bool is_first = said_.last_ns == 0;
  const bool is_asked = passes && !is_first && mine.heard_ns - said_.last_ns >= kAgainNs &&
                        std::any_of(mine.awaited.begin(), mine.awaited.end(), is_news);
  const bool is_stuck = seems_stuck && is_long && mine.heard_ns >= said_.next_ns;
  const bool to_all = is_asked || is_stuck || (passes && is_long && !said_.to_all);
  if (!is_first && !to_all) return {};
  said_.last_ns = mine.heard_ns;
  said_.next_ns = mine.heard_ns + std::max<int64_t>(2 * kAgainNs, static_cast<int64_t>(mine.idle_ns) / 2);
  said_.to_all = said_.to_all || to_all;
  return to_all ? Gossip::Kind::kSpread : Gossip::Kind::kStatement;
}

std::optional<PeerWatch::Answer> Comparison::hear(std::string_view bytes) {
  ByteReader reader(bytes);
  const std::lock_guard lock(mutex_);
  const auto word = gossip_.hear(&reader, Gossip::Kind::kBlocks, Gossip::Kind::kSpread);
  if (!word) return {};
  return word->kind == Gossip::Kind::kBlocks ? hear_question(reader, *word) : hear_statement(reader, *word);
}

// The first question reaches all ranks, so every later one meets it somewhere, and is compared with it there.
std::optional<PeerWatch::Answer> Comparison::hear_question(ByteReader reader, const Gossip::Word& word) {
  TagWords tag;
  Account theirs{word.from, {}};
  reader.all(tag, theirs.place, theirs.blocks);
  theirs.call = from_tag(tag);
  if (!reader.ok() || static_cast<int>(theirs.call.collective) >= kCollectives) return {};
  PeerWatch::Answer answer{{}, !asked_};
  const auto compare = [&](const Account& known) {
    if (answer.error || known.call.sequence != theirs.call.sequence || is_same_request(known.call, theirs.call)) return;
    answer = {disagreement(known, theirs), false};
  };
  compare(tell(recorder_.memory().find(theirs.call.sequence)));
  if (asked_) compare(*asked_);
  if (!asked_) asked_ = std::move(theirs);
  return answer;
}

std::optional<PeerWatch::Answer> Comparison::hear_statement(ByteReader reader, const Gossip::Word& word) {
  if (word.is_known) return PeerWatch::Answer{};
  auto standing = Standing::get(reader, gossip_.n_ranks);
  if (!standing) return {};
  if (standing->call.collective == Collective::kNone)
    unchecked_.erase(word.from);
  else
    unchecked_.insert(word.from);
  standing->rank = word.from;
  standing->heard_ns = now_ns();
  Standing& kept = stated_[word.from] = *std::move(standing);
  has_statements_.store(true, std::memory_order_release);
  PeerWatch::Answer answer{{}, word.kind == Gossip::Kind::kSpread};
  // Any rank that has both statements ends the group: the two ranks themselves may not have each other's.
  for (const auto& [other, theirs] : stated_) {
    if (!answer.error) answer.error = missed(theirs, kept);
    if (!answer.error) answer.error = missed(kept, theirs);
  }
  return answer;
}

// A call that this rank has not made yet is checked again later.
Result<void> Comparison::check() {
  if (!has_statements_.load(std::memory_order_acquire)) return {};
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return {};  // check() is called again soon
  for (auto rank = unchecked_.begin(); rank != unchecked_.end();) {
    const Standing& theirs = stated_[*rank];
    const Call mine = recorder_.memory().find(theirs.call.sequence);
    if (mine.sequence != 0 && !is_same_request(mine, theirs.call)) return disagreement(tell(mine), theirs);
    const bool is_checked = mine.sequence != 0 || recorder_.memory().is_past(theirs.call.sequence);
    rank = is_checked ? unchecked_.erase(rank) : std::next(rank);
  }
  has_statements_.store(!unchecked_.empty(), std::memory_order_release);
  return {};
}

}  // namespace tutti
