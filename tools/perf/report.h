// Rank 0's output: nccl-tests' table, so that scripts written for that can read this one, and its JSON.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "collective.h"
#include "memory.h"
#include "options.h"
#include "status.h"

namespace tutti::perf {

struct RankInfo {
  int pid;
  std::string host;
  int device = -1;  // CUDA's number; -1: host memory
  std::string device_name = "CPU";
};

// One of the two halves of a row: out of place or in place.
struct Measurement {
  double seconds = 0;        // per operation
  double cpu_seconds = 0;    // of the calling thread, per operation
  double first_seconds = 0;  // with --first: of the very first operation, on the slowest rank
  double alg_bw = 0, bus_bw = 0;
  long long wrong = -1;                                // -1: not checked
  std::vector<double> iter_seconds;                    // with -I: per operation, of the slowest rank
  std::vector<std::vector<double>> rank_iter_seconds;  // with -I: each rank's own
};

struct Row {
  size_t bytes, count;
  tuttiDataType_t type;
  tuttiRedOp_t op;
  int root;
  Measurement out_of_place;
  std::optional<Measurement> in_place;
};

struct Totals {
  long long wrong = 0;
  double bus_bw_sum = 0;
  int measurements = 0;
  double average_bus_bw() const { return measurements == 0 ? 0 : bus_bw_sum / measurements; }
};

std::string header_text(const Options& options, const Collective& collective, const std::vector<RankInfo>& ranks);
std::string columns_text(const Options& options);
std::string footer_text(const Collective& collective, const Totals& totals);
// As printed: "none" if it does not apply to the operation.
const char* type_name(const Collective& collective, const Row& row);
const char* op_name(const Collective& collective, const Row& row);
std::string row_text(const Options& options, const Collective& collective, const Row& row);
// A number in at most `width` characters, as nccl-tests prints it.
std::string number_text(double value, int width);

class Report {
 public:
  Report(const Options& options, const Collective& collective);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  Status open();  // reports early whether the JSON file can be written
  Status header(const std::vector<RankInfo>& ranks);
  Status row(const Row& row);
  Status remark(const std::string& lines);     // as comments in the table
  Status conclude(const MemoryMarks& memory);  // the table's end and the JSON
  // Writes the JSON unless that was done; `error` says why the run ended early, or is "".
  Status write_json(const std::string& error);

 private:
  Status print(const std::string& text);
  Status keep_json();
  Status put_json(const std::string& error);
  Error json_error() const;

  const Options& options_;
  const Collective& collective_;
  FILE* out_ = nullptr;
  FILE* json_ = nullptr;
  double keeps_json_at_ = 0;
  std::string start_time_;
  std::vector<RankInfo> ranks_;
  std::vector<Row> rows_;  // for the JSON only
  Totals totals_;
};

// A line on the terminal about work that takes long; nothing if stderr is not a terminal.
class Progress {
 public:
  explicit Progress(bool wanted);
  bool due() const;  // a second has passed since the row began, and some time since the last line
  void show(const std::string& what);
  void clear();  // call before a row is printed

 private:
  bool on_, shown_ = false;
  double next_;
};

double now_seconds();  // monotonic
std::string time_of_day();

}  // namespace tutti::perf
