#include "comm/inquiry.h"

#include <algorithm>

#include "base/clock.h"

namespace tutti {
namespace {

constexpr size_t kMostAwaited = 16, kMostText = 400;

std::string_view shortened(std::string_view text) {
  return text.substr(0, kMostText);
}

// Clocks differ between hosts, so times are sent as ages. Something that begins or ends while the recorder is being
// read may be newer than the trace's own time.
void put(const Witness& witness, ByteWriter* to) {
  const Trace& trace = witness.trace;
  const auto ago_ns = [&trace](int64_t at_ns) { return std::max<int64_t>(0, trace.read_ns - at_ns); };
  const TracedOperation* const last = trace.last();
  to->all(trace.rank, trace.process.pid, witness.process_state, shortened(trace.host), shortened(trace.error),
          shortened(witness.elsewhere), last != nullptr);
  if (last == nullptr) return;
  std::vector<int32_t> awaited = trace.wait.awaited;
  awaited.resize(std::min(awaited.size(), kMostAwaited));
  to->all(last->nth, to_tag(last->call), last->place, ago_ns(last->started_ns),
          last->finished_ns == 0 ? int64_t{-1} : ago_ns(last->finished_ns), ago_ns(trace.wait.since_ns), awaited);
}

bool get_operation(ByteReader& from, int n_ranks, Trace* trace) {
  const auto is_time = [](int64_t ns) { return ns >= -1 && ns < INT64_MAX / 4; };
  TracedOperation last;
  TagWords tag;
  int64_t started, finished, since;
  std::vector<int32_t>& awaited = trace->wait.awaited;
  from.all(last.nth, tag, last.place, started, finished, since, awaited);
  last.call = from_tag(tag);
  bool is_sound = is_time(started) && is_time(finished) && is_time(since) && awaited.size() <= kMostAwaited &&
                  static_cast<int>(last.call.collective) < kCollectives;
  for (const int32_t rank : awaited) is_sound = is_sound && rank >= 0 && rank < n_ranks;
  if (!is_sound || !from.ok()) return false;
  last.started_ns = trace->read_ns - started;
  last.finished_ns = finished < 0 ? 0 : trace->read_ns - finished;
  last.state = finished < 0 ? TracedOperation::State::kStarted : TracedOperation::State::kCompleted;
  trace->wait.since_ns = trace->read_ns - since;
  trace->operations.push_back(std::move(last));
  return true;
}

std::optional<Witness> get(ByteReader& from, int n_ranks) {
  Witness witness;
  witness.is_remote = true;
  Trace& trace = witness.trace;
  trace.read_ns = now_ns();
  trace.n_ranks = n_ranks;
  bool has_operation;
  from.all(trace.rank, trace.process.pid, witness.process_state, trace.host, trace.error, witness.elsewhere,
           has_operation);
  if (!from.ok() || trace.rank < 0 || trace.rank >= n_ranks) return {};
  if (has_operation && !get_operation(from, n_ranks, &trace)) return {};
  return witness;
}

bool is_stopped(const Witness& witness) {
  return witness.process_state == 'T' || witness.process_state == 't';
}

}  // namespace

bool Inquiry::is_due(int64_t idle_ns) {
  const std::lock_guard lock(mutex_);
  const int64_t now = now_ns();
  if (idle_ns < every_ns() * 2 / 5 || now - looked_ns_ < every_ns()) return false;
  looked_ns_ = now;
  if (!sees_all()) return true;
  constexpr int64_t kSeenNs = 5'000'000'000;  // who has a file seldom loses it, and all files are read each time
  looked_ns_ += kSeenNs;
  return false;
}

bool Inquiry::sees_all() const {
  const Witnesses here = seen();
  return static_cast<int>(here.size()) == gossip_.n_ranks &&
         std::none_of(here.begin(), here.end(), [](const auto& w) { return w.second.process_state == '?'; });
}

void Inquiry::take_asked(int64_t now) {
  if (now - asked_ns_ > 3 * every_ns()) asked_first_ns_ = now;
  asked_ns_ = now;
}

std::string Inquiry::question() {
  const std::lock_guard lock(mutex_);
  const int64_t now = now_ns();
  if (now - asked_ns_ < every_ns() / 2) return {};
  take_asked(now);
  return gossip_.begin(Gossip::Kind::kInquiry).take();
}

Witnesses Inquiry::seen() const {
  if (recorder_.path().empty()) return {};
  return find_witnesses(recorder_.path().substr(0, recorder_.path().rfind('/')))[recorder_.header().group];
}

std::string Inquiry::account() {
  Witnesses here = seen();
  if (!here.contains(gossip_.rank)) here[gossip_.rank] = {read_trace(recorder_), process_state(this_process())};
  std::string text = gossip_.begin(Gossip::Kind::kAccount).take();
  for (const auto& [rank, witness] : here) {
    if (rank != gossip_.rank && !is_stopped(witness)) continue;
    ByteWriter one;
    put(witness, &one);
    const std::string bytes = one.take();
    if (text.size() + bytes.size() <= Ending::kMostQuestionBytes) text += bytes;
  }
  return text;
}

std::optional<PeerWatch::Answer> Inquiry::hear(std::string_view bytes) {
  ByteReader reader(bytes);
  const std::lock_guard lock(mutex_);
  const auto word = gossip_.hear(&reader, Gossip::Kind::kInquiry, Gossip::Kind::kAccount);
  if (!word) return {};
  if (word->is_known) return PeerWatch::Answer{};
  PeerWatch::Answer answer{{}, true, {}};
  if (word->kind == Gossip::Kind::kAccount) return hear_account(reader) ? std::optional(answer) : std::nullopt;
  const int64_t now = now_ns();
  take_asked(now);
  // Every rank hears the answer, and many may ask.
  if (now - answered_ns_ < every_ns() / 2) return answer;
  answered_ns_ = now;
  answer.says = account();
  return answer;
}

bool Inquiry::hear_account(ByteReader reader) {
  while (!reader.at_end()) {
    auto witness = get(reader, gossip_.n_ranks);
    if (!witness) return false;
    said_[witness->trace.rank] = *std::move(witness);
  }
  return true;
}

Witnesses Inquiry::all(const PeerWatch& names) const {
  Witnesses all = seen();
  const std::lock_guard lock(mutex_);
  const int64_t now = now_ns();
  const bool is_asked = now - asked_ns_ < 3 * every_ns();
  for (int rank = 0; rank < gossip_.n_ranks && is_asked; rank++) {
    const auto here = all.find(rank);
    if (rank == gossip_.rank || (here != all.end() && here->second.process_state != '?')) continue;
    const auto said = said_.find(rank);
    const int64_t heard_ns = said == said_.end() ? 0 : said->second.trace.read_ns;
    const int64_t silent_ns = now - std::max(heard_ns, asked_first_ns_);
    if (silent_ns > 2 * every_ns()) {
      all[rank].trace.rank = rank;
      all[rank].silent =
          format("%s has not answered for %.1f s", names.rank_name(rank).c_str(), static_cast<double>(silent_ns) / 1e9);
    } else if (said != said_.end() && heard_ns >= asked_first_ns_) {
      all[rank] = said->second;
    }
  }
  return all;
}

}  // namespace tutti
