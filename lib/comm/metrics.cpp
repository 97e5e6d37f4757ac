#include "comm/metrics.h"

#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "debug/trace_json.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kLook{100};
constexpr int64_t kWriteNs = 5'000'000'000;

// Each metric's samples follow its description.
class Page {
 public:
  explicit Page(uint64_t group) : group_(format("group=\"%016lx\"", group)) {}
  void metric(const char* name, const char* type, const char* help) {
    name_ = name;
    text_ += format("# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
  }
  void sample(int rank, const std::string& labels, const std::string& value) {
    text_ += format("%s{%s,rank=\"%d\"%s} %s\n", name_, group_.c_str(), rank, labels.c_str(), value.c_str());
  }
  void sample(int rank, const std::string& labels, uint64_t value) { sample(rank, labels, std::to_string(value)); }
  void seconds(int rank, const std::string& labels, int64_t ns) {
    sample(rank, labels, format("%.9f", static_cast<double>(ns) / 1e9));
  }
  std::string take() { return std::move(text_); }

 private:
  const std::string group_;
  const char* name_ = "";
  std::string text_;
};

std::string peer(int rank) {
  return format(",peer=\"%d\"", rank);
}

std::string operation(size_t collective) {
  return format(",operation=\"%s\"", traits(static_cast<Collective>(collective)).name);
}

void add_lateness(const StragglerDetector& roll, Page* page) {
  page->metric("tutti_compared_operations_total", "counter",
               "Collectives in which this rank was compared with the others.");
  for (const auto& [rank, r] : roll.ranks()) page->sample(rank, "", r.operations);
  page->metric("tutti_late_operations_total", "counter",
               "Compared collectives that this rank reached a millisecond or more late.");
  for (const auto& [rank, r] : roll.ranks()) page->sample(rank, "", r.late);
  page->metric("tutti_late_seconds_total", "counter",
               "How late this rank was for collectives that it reached late, in total.");
  for (const auto& [rank, r] : roll.ranks()) page->seconds(rank, "", r.late_ns);
  page->metric("tutti_waited_seconds_total", "counter", "How long this rank has waited for a late peer, in total.");
  for (const auto& [who, ns] : roll.waited_ns()) page->seconds(who.first, peer(who.second), ns);
}

}  // namespace

void OperationTotals::count(const Trace& trace) {
  if (trace.operations.empty() || trace.last()->nth <= counted) return;
  const uint64_t begun = trace.last()->nth - counted;
  uint64_t seen = 0;
  std::array<Total, kCollectives> found{};
  for (const TracedOperation& one : trace.operations) {
    if (one.nth <= counted) continue;  // counted before, when it had not ended
    seen++;
    Total& total = found[static_cast<size_t>(one.call.collective)];
    total.operations++;
    total.bytes += bytes_of(one.call);
  }
  for (size_t i = 0; i < found.size(); i++) {
    by_collective[i].operations += found[i].operations * begun / seen;
    by_collective[i].bytes += static_cast<uint64_t>(static_cast<double>(found[i].bytes) * static_cast<double>(begun) /
                                                    static_cast<double>(seen));
  }
  counted += begun;
}

Trace LatenessWatch::look() {
  Attendants::Seen seen = attendants_.look();
  roll.enter(seen.ended);
  roll.compare();
  tell_of_stragglers();
  return std::move(seen.own);
}

// The answers to the last question have arrived by now; if not, the next ones contain them.
void LatenessWatch::look_elsewhere() {
  const int64_t now = now_ns();
  if (!others_.any() || now - asked_ns_ < others_.every_ns()) return;
  asked_ns_ = now;
  roll.enter(others_.heard());
  others_.ask(watch_, roll.compared());
}

void LatenessWatch::tell_of_stragglers() {
  constexpr uint64_t kEnough = 20;
  constexpr int64_t kPauseNs = 60'000'000'000;
  const int64_t now = now_ns();
  if (roll.stragglers() < told_stragglers_ + kEnough || (told_ns_ != 0 && now - told_ns_ < kPauseNs)) return;
  const auto sentence = roll.sentence(true);
  if (!sentence) return;
  log(LogLevel::kInfo, "%s", sentence->c_str());
  told_stragglers_ = roll.stragglers();
  told_ns_ = now;
}

std::unique_ptr<Metrics> Metrics::start(const Recorder& recorder, PeerWatch& watch, const LinkPool& links,
                                        const std::string& pattern, RemoteAttendants* others) {
  if (pattern.empty() && !(others != nullptr && log_enabled(LogLevel::kInfo))) return nullptr;
  std::unique_ptr<Metrics> metrics(new Metrics(recorder, watch, links));
  if (!pattern.empty()) metrics->path_ = trace_path(pattern, read_trace(recorder));
  if (others != nullptr) metrics->lateness_.emplace(recorder, watch, *others);
  auto thread = start_thread("the thread that writes metrics", [&me = *metrics] { me.serve(); });
  if (!thread) {
    log(LogLevel::kWarn, "neither metrics nor late ranks are reported: %s", thread.error().message.c_str());
    metrics->path_.clear();
    return nullptr;
  }
  metrics->thread_ = std::move(thread).value();
  return metrics;
}

Metrics::~Metrics() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stops_.notify_one();
  if (thread_.joinable()) thread_.join();
  (void)contained([this] { return write(), Result<void>(); });
}

void Metrics::serve() {
  log_set_thread_rank(recorder_.header().rank);
  std::unique_lock lock(mutex_);
  while (!stops_.wait_for(lock, kLook, [&] { return stopping_; })) {
    (void)contained([this]() -> Result<void> {  // without memory: next time
      look();
      if (lateness_) lateness_->look_elsewhere();
      if (now_ns() - written_ns_ >= kWriteNs) write_now();
      return {};
    });
  }
}

void Metrics::look() {
  const bool compares = lateness_ && !recorder_.path().empty();
  totals_.count(compares ? lateness_->look() : read_trace(recorder_, read_from(recorder_.header(), totals_.counted)));
}

void Metrics::write() {
  const std::lock_guard lock(mutex_);
  look();
  if (lateness_) lateness_->roll.compare_all();  // without waiting for missing ranks
  write_now();
}

void Metrics::write_now() {
  written_ns_ = now_ns();
  if (path_.empty()) return;
  const auto written = replace_file(path_, text());
  if (written || has_warned_) return;
  has_warned_ = true;
  log(LogLevel::kWarn,
      "TUTTI_METRICS_FILE: rank %d cannot write its metrics: %s; name a file in a folder that this process may "
      "write to, on a file system that has room",
      recorder_.header().rank, written.error().message.c_str());
}

std::string Metrics::text() const {
  const TraceHeader& header = recorder_.header();
  Page page(header.group);
  const auto add_totals = [&](uint64_t OperationTotals::Total::*number) {
    for (size_t i = 0; i < kCollectives; i++)
      if (const auto& total = totals_.by_collective[i]; total.operations > 0)
        page.sample(header.rank, operation(i), total.*number);
  };
  page.metric("tutti_operations_total", "counter", "Operations that this rank has begun.");
  add_totals(&OperationTotals::Total::operations);
  page.metric("tutti_bytes_total", "counter", "Bytes in the operations that this rank has begun, by their counts.");
  add_totals(&OperationTotals::Total::bytes);
  page.metric("tutti_errors_total", "counter", "1 if the communicator has failed.");
  page.sample(header.rank, "", uint64_t{watch_.ending().failed()});
  page.metric("tutti_control_retransmits_total", "counter",
              "Segments retransmitted on the control connection to a peer: a sample of what the network loses.");
  for (const auto& [other, n] : watch_.lines().retransmits()) page.sample(header.rank, peer(other), n);
  page.metric("tutti_retransmits_total", "counter",
              "Segments retransmitted on the data connections to a peer, as of the last operation that waited.");
  for (const auto& [other, n] : links_.resent()) page.sample(header.rank, peer(other), n);
  if (lateness_) add_lateness(lateness_->roll, &page);
  return page.take();
}

}  // namespace tutti
