#include "comm/monitor.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/file.h"
#include "base/log.h"
#include "debug/trace_json.h"
#include "debug/why.h"

namespace tutti {
namespace {

// Whether several ranks of a host write to the file that a pattern (see trace_path()) stands for. Hosts may have
// folders of their own under one name.
bool is_of_several(const std::string& pattern, const Membership& me) {
  const auto has = [&](const char* part) { return pattern.find(part) != std::string::npos; };
  if (pattern.empty() || has("%r")) return false;
  return has("%p") ? me.roster->ranks_of_process.size() > 1 : me.roster->facts.largest_host > 1;
}

void warn_if_of_several(const char* variable, const std::string& pattern, const Membership& me, const Trace& trace,
                        std::atomic<bool>& has_warned) {
  const std::string path = trace_path(pattern, trace);
  const auto takes_all = [&] { return written_at(path) == path; };  // a pipe, say
  if (me.rank != 0 || !is_of_several(pattern, me) || takes_all() || has_warned.exchange(true)) return;
  log(LogLevel::kWarn,
      "%s=%s is one file for several ranks, each of which replaces what the others have written: put %%r, which "
      "becomes the rank, into its name",
      variable, pattern.c_str());
}

void warn_if_not_writable(const std::string& trace_file, const Trace& trace, std::atomic<bool>& has_warned) {
  const std::string at = written_at(trace_path(trace_file, trace));
  if (access(at.c_str(), W_OK) == 0) return;
  const Error why = system_error("writing to " + at, errno);
  if (has_warned.exchange(true)) return;
  log(LogLevel::kWarn,
      "TUTTI_TRACE_FILE: if this communicator fails, its last operations cannot be saved: %s; name a file in a folder "
      "that this process may write to",
      why.message.c_str());
}

// Told while somebody can still change it, once per process.
void check_files(const Membership& me, const Recorder& recorder) {
  const std::string &traces = me.options.trace_file, &metrics = me.options.metrics_file;
  if (traces.empty() && metrics.empty()) return;
  static std::atomic<bool> told_of_traces{false}, told_of_metrics{false}, told_of_folder{false};
  const Trace trace = read_trace(recorder);
  warn_if_of_several("TUTTI_TRACE_FILE", traces, me, trace, told_of_traces);
  warn_if_of_several("TUTTI_METRICS_FILE", metrics, me, trace, told_of_metrics);
  if (!traces.empty() && me.leads_host()) warn_if_not_writable(traces, trace, told_of_folder);
}

}  // namespace

Monitor::~Monitor() {
  metrics_.reset();  // its destructor writes for the last time
  if (watch_) (void)contained([this] { return leave(), Result<void>(); });
}

void Monitor::leave() {
  const auto say_where = [&]() -> Result<void> {
    watch_->ending().tell(comparison_.farewell(begun_.standing(me_.rank, Standing::Doing::kLeft, recorder_)));
    return {};
  };
  if (!me_.is_on_gpu()) (void)contained(say_where);  // best effort: it needs memory
  watch_->ending().say_goodbye(begun_.sequence);
  if (metrics_) metrics_->write();
}

void Monitor::take_place() {
  remote_attendants_.emplace(me_.rank, me_.layout().hosts, recorder_);
  // One rank per host cleans up after dead processes: it looks at the files of all processes there.
  recorder_.share(me_.rank, me_.n_ranks, me_.roster->group, me_.leads_host(), me_.options.trace_file);
  check_files(me_, recorder_);
}

Result<void> Monitor::connect(PeerWatch::Config config, std::vector<Fd> listening, Deadline deadline,
                              const std::function<bool()>& gives_up) {
  config.listener = [this](std::string_view question) { return hear(question); };
  config.tick = [this](PeerWatch& watch) { remote_attendants_->serve_tool(watch); };
  TUTTI_TRY_ASSIGN(watch_, PeerWatch::create(std::move(config), std::move(listening), deadline, gives_up));
  return {};
}

void Monitor::start_metrics(const LinkPool& links) {
  metrics_ = Metrics::start(recorder_, *watch_, links, me_.options.metrics_file,
                            me_.leads_host() ? &*remote_attendants_ : nullptr);
}

std::optional<PeerWatch::Answer> Monitor::hear(std::string_view question) {
  auto answer = inquiry_.hear(question);
  if (!answer) answer = remote_attendants_->hear(question);
  return answer ? std::move(answer) : comparison_.hear(question);
}

Result<void> Monitor::async_error() const {
  if (watch_->ending().failed()) return watch_->ending().failure();
  return {};
}

Result<void> Monitor::failure_soon(int grace_ms) const {
  watch_->ending().wait(grace_ms);
  return async_error();
}

void Monitor::abort(const char* function) {
  auto told = contained([&]() -> Result<void> {
    const Error mine{Code::kInvalidUsage, std::string(function) + " was called on this rank", me_.rank};
    const std::string place = in_parentheses(place_name(place_of_thread()));
    watch_->ending().fail(mine,
                          {Code::kRemoteError, watch_->rank_name(me_.rank) + " called " + function + place, me_.rank});
    keep_trace(mine);
    return {};
  });
  if (!told) watch_->ending().fail(told.error());  // operations end even if there is no memory to say why
}

Result<void> Monitor::check_alive() {
  auto alive = async_error();
  if (!alive) keep_trace(alive.error());
  return alive;
}

Error Monitor::end_with(Error error) {
  recorder_.end(false);
  watch_->ending().fail(root_cause(std::move(error)));
  // A peer's notice may have arrived first: then that is the reason, now and later.
  Error reason = watch_->ending().failure();
  keep_trace(reason);
  return reason.code == Code::kRemoteError ? with_places(std::move(reason)) : reason;
}

Result<void> Monitor::has_driven(const Run& run, Result<void> result) {
  constexpr int kAnswerMs = 1000;
  if (result || run.differs_in() == 0 || watch_->ending().failed()) return result;
  watch_->ending().ask(comparison_.question(run.differs_in()), result.error(), kAnswerMs);
  return watch_->ending().failure();
}

// Only for a group that has ended, and only once.
void Monitor::keep_trace(const Error& reason) {
  if (!recorder_.fail(reason.message)) return;
  write_trace_file(recorder_, me_.options.trace_file);
  if (metrics_) metrics_->write();
}

Error Monitor::root_cause(Error error) const {
  // A rank that gives up on a silent peer knows the cause, and reports before that peer, which only sees a reset.
  const int grace_ms = error.sys_errno == ETIMEDOUT ? kGraceMs / 2 : kGraceMs;
  const auto cause = error.code == Code::kRemoteError ? failure_soon(grace_ms) : async_error();
  if (!cause) return cause.error();
  const auto operations = watch_->departed(error.culprit_rank);
  const auto blame = [&]() -> Result<void> {
    error.message = format("%s finalized or destroyed its communicator after %lu operations; %s",
                           watch_->rank_name(error.culprit_rank).c_str(), *operations, error.message.c_str());
    return {};
  };
  if (operations) (void)contained(blame);  // without memory for it the group ends all the same
  return error;
}

// Adds which operation this rank is in, and the lost rank, if that is on this host: elsewhere it is not known.
Error Monitor::with_places(Error error) const {
  const Trace mine = read_trace(recorder_);
  if (const TracedOperation* const last = mine.last();
      last != nullptr && last->state != TracedOperation::State::kCompleted)
    error.message +=
        format("; rank %d was in %s%s", me_.rank, to_text(*last).c_str(), in_parentheses(last->place).c_str());
  else if (last != nullptr)
    error.message += format("; rank %d was %s", me_.rank, place_in_order(mine).c_str());
  const Witnesses witnesses = inquiry_.seen();
  const auto culprit = witnesses.find(error.culprit_rank);
  if (error.culprit_rank == me_.rank || culprit == witnesses.end()) return error;
  error.message += format(", rank %d was %s", error.culprit_rank, place_in_order(culprit->second.trace).c_str());
  return error;
}

// The blocks first: another rank may ask for them as soon as the recorder has the call.
Call Monitor::begin(const Operation& operation, Algo algo) {
  Call call = to_call(operation);
  call.sequence = ++begun_.sequence;
  call.algo = algo;
  if (operation.unequal != nullptr) comparison_.add(call, operation.unequal);
  recorder_.begin(to_tag(call), call.sequence, operation.caller, operation.created);
  return call;
}

std::string Monitor::explain_wait() const {
  Witnesses witnesses = inquiry_.all(*watch_);
  witnesses.insert_or_assign(me_.rank, Witness{read_trace(recorder_), 'R', {}});
  return why(witnesses, me_.rank);
}

StragglerDetector::Rank Monitor::lateness(int rank) {
  const StragglerDetector roll = remote_attendants_->gather(*watch_);
  const auto found = roll.ranks().find(rank);
  return found == roll.ranks().end() ? StragglerDetector::Rank{} : found->second;
}

Result<void> dump_trace(const Recorder& recorder, const std::string& path) {
  TUTTI_TRY(write_trace(read_trace(recorder), path));
  return {};
}

Result<void> dump_traces(const std::string& path) {
  std::vector<Trace> traces;
  for_each_recorder([&](const Recorder& recorder) {
    if (recorder.header().n_ranks > 0) traces.push_back(read_trace(recorder));
  });
  for (const Trace& trace : traces) TUTTI_TRY(write_trace(trace, path));
  return {};
}

}  // namespace tutti
