#include "report.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <utility>

#include "json.h"
#include "types.h"

namespace tutti::perf {
namespace {

constexpr const char* kTimeFormat = "%Y-%m-%d %H:%M:%S";

std::string half_text(const Options& options, const Collective& collective, const Measurement& m) {
  const auto bandwidth = [&](double value) { return collective.has_data ? number_text(value, 6) : "N/A"; };
  const double seconds = options.cpu_time ? m.cpu_seconds : m.seconds;
  std::string out = text("  %7s  %6s  %6s", number_text(seconds * 1e6, 7).c_str(), bandwidth(m.alg_bw).c_str(),
                         bandwidth(m.bus_bw).c_str());
  out += m.wrong < 0 ? "     N/A" : text("  %6g", static_cast<double>(m.wrong));
  if (m.iter_seconds.empty()) return out;
  const IterStats stats = iter_stats(m.iter_seconds, static_cast<size_t>(options.per_iter_skip));
  const double variation = stats.average > 0 ? 100 * stats.deviation / stats.average : 0;
  for (double value : {stats.min * 1e6, stats.max * 1e6, stats.p99 * 1e6, variation}) {
    out += text("  %7s", number_text(value, 7).c_str());
  }
  return out;
}

// The columns of an operation that has no in-place variant.
std::string no_half_text(const Options& options) {
  std::string out = text("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
  if (options.per_iter_timing) out += text("  %7s  %7s  %7s  %7s", "N/A", "N/A", "N/A", "N/A");
  return out;
}

// One line of column titles; `half` has those of out of place or in place.
std::string titles(const char* size, const char* count, const char* type, const char* op, const char* root,
                   const std::string& half, const std::string& stamp) {
  return text("# %10s  %12s  %8s  %6s  %6s", size, count, type, op, root) + half + half + " " + stamp + "\n";
}

}  // namespace

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string time_of_day() {
  const time_t now = time(nullptr);
  tm parts;
  char buffer[64];
  localtime_r(&now, &parts);
  strftime(buffer, sizeof(buffer), kTimeFormat, &parts);
  return buffer;
}

std::string number_text(double value, int width) {
  int digits = 0;
  for (double power = 1; value >= power && digits < 20; power *= 10) digits++;
  if (digits < width - 2) return text("%*.2f", width, value);
  if (digits < width - 1) return text("%*.1f", width, value);
  if (digits < width + 1) return text("%*.0f", width, value);
  return text("%*.*e", width, width >= 7 ? 1 : 0, value);
}

std::string header_text(const Options& o, const Collective& collective, const std::vector<RankInfo>& ranks) {
  int version = 0;
  static_cast<void>(tuttiGetVersion(&version));  // it only fails for NULL
  std::string out = text("# tutti-perf headers=%d library=%d\n", TUTTI_VERSION_CODE, version);
  out += text("# Collective test starting: %s\n", collective.tool);
  const bool factor = o.step_factor > 1;
  out += text("# nThread %d nGpus 1 minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d agg iters: %d ",
              o.threads, o.min_bytes, o.max_bytes, factor ? o.step_factor : o.step_bytes, factor ? "factor" : "bytes",
              o.warmup_iters, o.iters, o.agg_iters);
  out += text("validation: %d graph: %d unalign: %zu\n", o.check_iters, o.graph_launches, o.unalign_elems);
  if (o.blocking == 1) out += "# Blocking Enabled: wait and barrier after each operation\n";
  if (o.blocking == 2) out += "# Blocking Enabled: wait after each operation, no barrier\n";
  if (o.blocking == 3) out += "# Blocking Enabled: wait and barrier after each iteration; the barrier is not timed\n";
  if (o.per_iter_timing) {
    out += text("# Per-Iteration Report: i_* are of the slowest rank of each iteration; the first %d are left out\n",
                o.per_iter_skip);
  }
  if (!o.sizes_from.empty()) out += text("# Sizes From: %s\n", o.sizes_from.c_str());
  if (!o.algo.empty()) out += text("# Algorithm: %s\n", o.algo.c_str());
  if (!o.transports.empty()) out += text("# Transports: %s\n", o.transports.c_str());
  if (!collective.has_data) out += "# No data is moved: sizes and types do not matter, and there is no bandwidth\n";
  out += "#\n# Using devices\n";
  for (size_t rank = 0; rank < ranks.size(); rank++) {
    const RankInfo& info = ranks[rank];
    out += text("#  Rank %2zu Group  0 Pid %6d on %10s device %2d [%s] %s\n", rank, info.pid, info.host.c_str(),
                std::max(0, info.device), info.device < 0 ? "host" : "cuda", info.device_name.c_str());
  }
  return out;
}

std::string columns_text(const Options& o) {
  std::string names = text("  %7s  %6s  %6s  %6s", o.cpu_time ? "cputime" : "time", "algbw", "busbw", "#wrong");
  std::string units = text("  %7s  %6s  %6s  %6s", "(us)", "(GB/s)", "(GB/s)", "");
  std::string places = "           out-of-place                       in-place          ";
  if (o.per_iter_timing) {
    names += text("  %7s  %7s  %7s  %7s", "i_min", "i_max", "i_p99", "i_cv%");
    units += text("  %7s  %7s  %7s  %7s", "(us)", "(us)", "(us)", "(%)");
    places =
        text("  %-66s  %s", "            out-of-place (+ per-iteration)", "            in-place (+ per-iteration)");
  }
  std::string out = "#\n";
  out += text("# %10s  %12s  %8s  %6s  %6s", "", "", "", "", "") + places + "\n";
  out += titles("size", "count", "type", "redop", "root", names, o.timestamps ? text("%19s", "timestamp") : "");
  out += titles("(B)", "(elements)", "", "", "", units, o.timestamps ? text("%19s", kTimeFormat) : "");
  return out;
}

std::string row_text(const Options& options, const Collective& collective, const Row& row) {
  std::string out = text("%12zu  %12zu  %8s  %6s  %6d", row.bytes, row.count, type_name(collective, row),
                         op_name(collective, row), row.root);
  out += half_text(options, collective, row.out_of_place);
  out += row.in_place ? half_text(options, collective, *row.in_place) : no_half_text(options);
  if (options.timestamps) out += text("%21s", time_of_day().c_str());
  return out + "\n";
}

const char* type_name(const Collective& collective, const Row& row) {
  return collective.has_data ? type_info(row.type).name : "none";
}

const char* op_name(const Collective& collective, const Row& row) {
  return collective.has_op ? kOpNames[static_cast<size_t>(row.op)] : "none";
}

std::string footer_text(const Collective& collective, const Totals& totals) {
  const std::string bandwidth = collective.has_data ? text("%g", totals.average_bus_bw()) : "N/A";
  return text("# Out of bounds values : %lld %s\n", totals.wrong, totals.wrong == 0 ? "OK" : "FAILED") +
         text("# Avg bus bandwidth    : %s \n", bandwidth.c_str()) +
         text("#\n# Collective test concluded: %s\n", collective.tool);
}

Report::Report(const Options& options, const Collective& collective)
    : options_(options), collective_(collective), start_time_(time_of_day()) {}

Report::~Report() {
  if (json_ != nullptr && json_ != stdout) fclose(json_);
}

Status Report::open() {
  const std::string& path = options_.json_path;
  out_ = path == "-" ? stderr : stdout;
  if (path.empty()) return {};
  json_ = stdout;
  if (path != "-") {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);  // keeps the previous document
    json_ = file < 0 ? nullptr : fdopen(file, "w");
  }
  if (json_ == nullptr) return usage_error(json_error().message);
  setvbuf(json_, nullptr, _IONBF, 0);  // a document is a single write: a killed run leaves the previous one or this one
  return {};
}

Status Report::print(const std::string& line) {
  fwrite(line.data(), 1, line.size(), out_);
  if (fflush(out_) == 0 && ferror(out_) == 0) return {};
  return Error{text("the results cannot be written: %s", strerror(errno))};
}

Status Report::header(const std::vector<RankInfo>& ranks) {
  ranks_ = ranks;
  if (Status s = print(header_text(options_, collective_, ranks) + columns_text(options_)); !s) return s;
  Status s = keep_json();
  keeps_json_at_ = 0;  // and once more with the first row
  return s;
}

Status Report::row(const Row& row) {
  for (const Measurement* m : {&row.out_of_place, row.in_place ? &*row.in_place : nullptr}) {
    if (m == nullptr) continue;
    totals_.wrong += std::max(0ll, m->wrong);
    totals_.bus_bw_sum += m->bus_bw;
    totals_.measurements++;
  }
  if (json_ != nullptr) rows_.push_back(row);
  if (Status s = print(row_text(options_, collective_, row)); !s) return s;
  return keep_json();
}

Status Report::remark(const std::string& lines) {
  std::string out;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    out += "#   " + lines.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return print(out);
}

Status Report::conclude(const MemoryMarks& memory) {
  if (Status s = print(footer_text(collective_, totals_)); !s) return s;
  if (options_.memory_report) {
    if (Status s = print(memory_text(memory)); !s) return s;
  }
  return write_json("");
}

// Writes the document so far, in case the run is killed: once a second, or less often if the document is so long that
// this takes a twentieth of the time. A pipe's reader only gets the last one.
Status Report::keep_json() {
  const double now = now_seconds();
  if (json_ == nullptr || json_ == stdout || now < keeps_json_at_ || fseek(json_, 0, SEEK_SET) != 0) return {};
  Status s = put_json("the run had not ended when this was written");
  keeps_json_at_ = now_seconds() + std::max(1.0, 20 * (now_seconds() - now));
  return s;
}

Status Report::write_json(const std::string& error) {
  if (json_ == nullptr) return {};
  if (json_ != stdout) fseek(json_, 0, SEEK_SET);  // a pipe has no document yet
  Status s = put_json(error);
  FILE* const file = std::exchange(json_, nullptr);
  if ((file == stdout ? fflush(file) : fclose(file)) != 0 && s) return json_error();
  return s;
}

Status Report::put_json(const std::string& error) {
  const std::string document =
      json_text({options_, collective_, ranks_, rows_, totals_, start_time_, time_of_day(), error}) + "\n";
  const bool is_whole = fwrite(document.data(), 1, document.size(), json_) == document.size();
  // The previous one may have been longer, by why it was not the end. Pipes and devices cannot be cut: EINVAL.
  if (is_whole && (json_ == stdout || ftruncate(fileno(json_), ftello(json_)) == 0 || errno == EINVAL)) return {};
  return json_error();
}

Error Report::json_error() const {
  return Error{text("-J %s: cannot be written: %s", options_.json_path.c_str(), strerror(errno))};
}

Progress::Progress(bool wanted) : on_(wanted && isatty(STDERR_FILENO) == 1), next_(now_seconds() + 1) {}

bool Progress::due() const {
  return on_ && now_seconds() >= next_;
}

void Progress::show(const std::string& what) {
  fprintf(stderr, "\r\033[K%s", what.c_str());
  shown_ = true;
  next_ = now_seconds() + 0.2;
}

void Progress::clear() {
  if (shown_) fputs("\r\033[K", stderr);
  shown_ = false;
  next_ = now_seconds() + 1;
}

}  // namespace tutti::perf
