#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../../tools/soak/board.h"
#include "beside.h"
#include "buffer.h"
#include "catch.h"
#include "json.h"
#include "made_up_root.h"
#include "measure.h"
#include "memory.h"
#include "report.h"
#include "tensors.h"

using namespace tutti::perf;

namespace {

const Collective kTool = {.tool = "tool_perf",
                          .call = "tuttiTool",
                          .has_op = true,
                          .layout = same_size,
                          .bus_factor = nullptr,
                          .run = nullptr,
                          .count_wrong = nullptr};

Row some_row() {
  Measurement slow = {
      .seconds = 0.0123456, .cpu_seconds = 1e-3, .alg_bw = 1.25, .bus_bw = 2.5, .wrong = 0, .iter_seconds = {}};
  Measurement fast = {
      .seconds = 1.5e-7, .cpu_seconds = 1e-7, .alg_bw = 12345.6, .bus_bw = 123456.7, .wrong = 3, .iter_seconds = {}};
  return {.bytes = 4096,
          .count = 1024,
          .type = tuttiFloat32,
          .op = tuttiSum,
          .root = -1,
          .out_of_place = slow,
          .in_place = fast};
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct List {
  const char* name;
  size_t tensors, elements;
};

}  // namespace

TEST_CASE("the column titles are nccl-tests'") {
  CHECK(columns_text(Options{}) ==
        "#\n"
        "#                                                              out-of-place                       in-place"
        "          \n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   "
        "busbw  #wrong \n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  "
        "(GB/s)         \n");
  Options options;
  options.cpu_time = true;
  CHECK(says(columns_text(options), "root  cputime   algbw"));
  options.timestamps = true;
  CHECK(says(columns_text(options), "#wrong           timestamp\n"));
}

TEST_CASE("the header says what is run, and where each rank is") {
  Options options;
  options.min_bytes = 8;
  options.max_bytes = 1024;
  options.step_factor = 2;
  const std::string header = header_text(options, kTool, {{123, "alpha"}, {77, "beta"}});
  CHECK(says(header,
             "# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 1 iters: 20 agg "
             "iters: 1 validation: 1 graph: 0 unalign: 0\n"));
  CHECK(says(header, "#  Rank  0 Group  0 Pid    123 on      alpha device  0 [host] CPU\n"));
  CHECK(says(header, "#  Rank  1 Group  0 Pid     77 on       beta device  0 [host] CPU\n"));
  const bool all_comments = header[0] == '#' && !says(header, "\n\n");
  CHECK(all_comments);
}

TEST_CASE("a row fits under the titles") {
  Options options;
  CHECK(row_text(options, kTool, some_row()) ==
        "        4096          1024     float     sum      -1  12345.6    1.25    2.50       0     0.15   12346  "
        "123457       3\n");
  Row unchecked = some_row();
  unchecked.in_place->wrong = -1;
  CHECK(says(row_text(options, kTool, unchecked), "123457     N/A\n"));
}

TEST_CASE("what an operation does not have is N/A, or null") {
  Collective exchange = kTool;
  exchange.has_op = exchange.has_in_place = false;
  Row row = some_row();
  row.in_place.reset();
  CHECK(row_text(Options{}, exchange, row) ==
        "        4096          1024     float    none      -1  12345.6    1.25    2.50       0      N/A     N/A     "
        "N/A     N/A\n");
  Collective barrier = exchange;
  barrier.has_data = false;
  row.bytes = row.count = 0;
  CHECK(row_text(Options{}, barrier, row) ==
        "           0             0      none    none      -1  12345.6     N/A     N/A       0      N/A     N/A     "
        "N/A     N/A\n");
  CHECK(says(header_text(Options{}, barrier, {}), "no bandwidth"));
  CHECK(says(footer_text(barrier, Totals{}), "bandwidth    : N/A \n"));
  const Options options;
  const auto j = nlohmann::json::parse(json_text({options, barrier, {}, {row}, Totals{}, "s", "e", ""}));
  CHECK(j["results"][0]["in_place"].is_null());
  CHECK(j["results"][0]["out_of_place"]["bus_bw"].is_null());
  CHECK(j["results"][0]["type"] == "none");
  CHECK(j["average_bus_bandwidth"]["bandwidth"].is_null());
}

TEST_CASE("blocks are as large as they can be, and in place one for each rank, side by side") {
  for (const size_t n : {size_t{1}, size_t{2}, size_t{3}, size_t{7}}) {
    for (const size_t total : {size_t{0}, size_t{2}, size_t{1000}, size_t{1001}}) {
      for (size_t rank = 0; rank < n; rank++) {
        const Layout gather = gathering(total, n, rank), scatter = scattering(total, n, rank);
        INFO(total << " elements on rank " << rank << " of " << n);
        CHECK(gather.count == total / n);
        CHECK(gather.send == gather.count);
        CHECK(gather.recv == n * gather.count);
        CHECK(gather.in_place_send_offset == rank * gather.count);
        CHECK(gather.in_place_recv_offset == 0);
        CHECK(scatter.count == total / n);
        CHECK(scatter.send == n * scatter.count);
        CHECK(scatter.recv == scatter.count);
        CHECK(scatter.in_place_send_offset == 0);
        CHECK(scatter.in_place_recv_offset == rank * scatter.count);
      }
    }
  }
}

TEST_CASE("numbers keep to their width") {
  CHECK(number_text(0, 7) == "   0.00");
  CHECK(number_text(9999.994, 7) == "9999.99");
  CHECK(number_text(12345.67, 7) == "12345.7");
  CHECK(number_text(1234567, 7) == "1234567");
  CHECK(number_text(123456789, 7) == "1.2e+08");
  CHECK(number_text(123456.7, 6) == "123457");
  CHECK(number_text(12345678, 6) == " 1e+07");
}

TEST_CASE("the footer sums up") {
  CHECK(footer_text(kTool, {.wrong = 0, .bus_bw_sum = 5, .measurements = 2}) ==
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 2.5 \n#\n# Collective test concluded: tool_perf\n");
  CHECK(says(footer_text(kTool, {.wrong = 7}), "# Out of bounds values : 7 FAILED\n"));
}

TEST_CASE("the JSON has nccl-tests' keys and no secret") {
  setenv("TUTTI_SECRET", "do not tell", 1);
  setenv("TUTTI_LOG", "warn", 1);
  Options options;
  options.args = {"tool_perf", "-b", "\xff"};
  const std::vector<RankInfo> ranks = {{1, "alpha"}};
  std::vector<Row> rows = {some_row()};
  rows[0].in_place->wrong = -1;
  const std::string document =
      json_text({options, kTool, ranks, rows, {.wrong = 0, .bus_bw_sum = 3, .measurements = 2}, "s", "e", "broke"});
  unsetenv("TUTTI_SECRET");
  CHECK_FALSE(says(document, "do not tell"));
  const auto j = nlohmann::json::parse(document);
  CHECK(j["config"]["minimum_bytes"] == 32 << 20);
  CHECK(j["config"]["devices"][0]["hostname"] == "alpha");
  const auto& row = j["results"][0];
  CHECK(row["size"] == 4096);
  CHECK(row["redop"] == "sum");
  CHECK(row["root"] == "    -1");
  CHECK(std::abs(row["out_of_place"]["time"].get<double>() - 12345.6) < 1e-6);
  CHECK(row["out_of_place"]["nwrong"] == 0);
  CHECK(row["in_place"]["nwrong"].is_null());
  CHECK(j["out_of_bounds"]["okay"] == "true");
  CHECK(j["average_bus_bandwidth"]["bandwidth"] == 1.5);
  CHECK(j["errors"][0] == "broke");
}

TEST_CASE("whenever a run is killed its JSON file holds the previous document or one of its own") {
  Options options;
  options.json_path = "/tmp/tutti-report-test." + std::to_string(getpid());
  const std::string previous = "[\"" + std::string(100000, 'x') + "\"]";
  std::ofstream(options.json_path) << previous;
  const auto content = [&] {
    std::ostringstream text;
    text << std::ifstream(options.json_path).rdbuf();
    return text.str();
  };
  Report report(options, kTool);
  REQUIRE(report.open());
  CHECK(content() == previous);
  const auto check_document = [&](size_t rows, size_t errors) {
    const auto j = nlohmann::json::parse(content(), nullptr, false);
    REQUIRE(j.is_object());
    CHECK(j["results"].size() == rows);
    CHECK(j["errors"].size() == errors);
  };
  CHECK(report.header({{1, "alpha"}}));
  check_document(0, 1);
  CHECK(report.row(some_row()));
  check_document(1, 1);
  CHECK(report.conclude({}));
  check_document(1, 0);
  unlink(options.json_path.c_str());
}

TEST_CASE("the JSON has the iterations of each process: its slowest rank's") {
  Options options;
  options.per_iter_timing = true;
  Row row = some_row();
  row.in_place.reset();
  row.out_of_place.iter_seconds = {4e-6, 9e-6};
  row.out_of_place.rank_iter_seconds = {{1e-6, 9e-6}, {4e-6, 2e-6}, {3e-6, 3e-6}};
  const auto times = [&](const std::vector<RankInfo>& ranks) {
    const auto j = nlohmann::json::parse(json_text({options, kTool, ranks, {row}, Totals{}, "s", "e", ""}));
    return j["results"][0]["out_of_place_per_iter"];
  };
  const auto two = times({{1, "alpha"}, {1, "alpha"}, {1, "beta"}})["per_process_max_times_us"];
  REQUIRE(two.size() == 2);
  CHECK(std::lround(two[0][0].get<double>()) == 4);
  CHECK(std::lround(two[0][1].get<double>()) == 9);
  CHECK(std::lround(two[1][0].get<double>()) == 3);
  CHECK(times({{1, "alpha"}, {2, "alpha"}, {3, "alpha"}})["per_process_max_times_us"].size() == 3);
  CHECK_FALSE(times({{1, "alpha"}, {1, "alpha"}, {1, "alpha"}}).contains("per_process_max_times_us"));
}

TEST_CASE("memory is reported by what came to be held at each stage, never less than nothing") {
  const double kib = 1024, mib = 1024 * kib;
  CHECK(memory_text({.start = mib, .joined = mib + 3 * kib, .allocated = mib + 5 * kib, .end = 2 * mib + 5 * kib}) ==
        "# Memory usage         : Initialization 3.0 KiB | User-Allocated 2.0 KiB | Collective 1.0 MiB | Total 1.0 "
        "MiB\n");
  CHECK(says(memory_text({.start = mib, .joined = 0, .allocated = 0, .end = 0}), "Total 0 bytes"));
  const double before = resident_bytes();
  const std::string held(8 << 20, 'x');
  CHECK(resident_bytes() >= before + static_cast<double>(held.size()) / 2);
}

TEST_CASE("memory that is left is the machine's, or what the tightest control group has") {
  const tutti_test::MadeUpRoot made_up;
  const std::string root = made_up.path, groups = root + "/sys/fs/cgroup";
  const auto write = tutti_test::MadeUpRoot::write;
  CHECK(available_bytes(root) == 0);
  write(root + "/proc/meminfo", "MemTotal: 900 kB\nMemAvailable: 500 kB\nSwapFree: 7 kB\n");
  CHECK(available_bytes(root) == 507 * 1024);
  write(root + "/proc/self/cgroup", "1:cpu:/else\n0::/job/step\n");
  CHECK(available_bytes(root) == 507 * 1024);
  write(groups + "/job/step/memory.max", "max\n");
  write(groups + "/job/step/memory.current", "102400\n");
  CHECK(available_bytes(root) == 507 * 1024);
  write(groups + "/job/memory.max", "204800\n");
  write(groups + "/job/memory.current", "102400\n");
  CHECK(available_bytes(root) == 107 * 1024);
  write(groups + "/job/memory.stat", "anon 51200\ninactive_file 1024\nactive_file 2048\nunevictable 4096\n");
  CHECK(available_bytes(root) == 110 * 1024);
  write(groups + "/memory.max", "3072\n");  // inside a container, which sees only this file
  write(groups + "/memory.current", "2048\n");
  CHECK(available_bytes(root) == 8 * 1024);
  std::filesystem::remove_all(groups);
  write(root + "/proc/self/cgroup", "4:memory:/job\n1:cpu:/else\n0::/\n");
  CHECK(available_bytes(root) == 507 * 1024);
  write(groups + "/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  write(groups + "/memory/job/memory.usage_in_bytes", "102400\n");
  CHECK(available_bytes(root) == 507 * 1024);
  write(groups + "/memory/memory.limit_in_bytes", "204800\n");
  write(groups + "/memory/memory.usage_in_bytes", "102400\n");
  write(groups + "/memory/memory.stat", "active_file 512\ntotal_active_file 1024\n");
  CHECK(available_bytes(root) == 108 * 1024);
}

TEST_CASE("the spread of iterations") {
  const IterStats s = iter_stats({100, 4, 2, 3, 1}, 1);
  CHECK(s.min == 1);
  CHECK(s.max == 4);
  CHECK(s.average == 2.5);
  CHECK(s.p50 == 3);
  CHECK(s.p99 == 4);
  CHECK(s.deviation * s.deviation > 1.2499);
  CHECK(s.deviation * s.deviation < 1.2501);
}

TEST_CASE("writes outside of a buffer are counted") {
  Buffer buffer;
  REQUIRE(static_cast<bool>(buffer.allocate(100, Memory::kHost)));
  buffer.move(4);
  buffer.poison(90);
  memset(buffer.data(), 0, 90);
  CHECK(buffer.count_overwritten(90) == 0);
  buffer.data()[90] = 0;
  buffer.data()[-1] = 0;
  buffer.data()[-3] = 0;
  CHECK(buffer.count_overwritten(90) == 3);
  CHECK(buffer.count_changed(0, 90) == 90);
  buffer.poison(90);
  CHECK(buffer.count_changed(0, 90) == 0);
  buffer.data()[7] = 0;
  CHECK(buffer.count_changed(7, 8) == 1);
  CHECK(buffer.count_changed(8, 90) == 0);
}

TEST_CASE("tensors are laid out one after the other, each on a boundary of its own") {
  const Work work = make_work(kTool, tuttiFloat32, {3, 16, 5}, 2, 0);
  REQUIRE(work.pieces.size() == 3);
  CHECK(work.count == 24);
  CHECK(work.bytes == 96);
  CHECK(work.pieces[1].offset_bytes == 64);
  CHECK(work.pieces[2].offset_bytes == 128);
  CHECK(work.extent_bytes == 148);
  CHECK(work.pieces[2].first == 19);
}

TEST_CASE("where ranks have unequal parts, buffers are those of the rank with most") {
  Collective uneven = kTool;
  uneven.layout = [](size_t total, size_t, size_t rank) {
    return Layout{.count = total, .send = total * (2 - rank), .recv = rank * 7};
  };
  for (const int rank : {0, 1}) {
    const Work work = make_work(uneven, tuttiFloat32, {20, 1}, 2, rank);
    CHECK(work.pieces[0].elems == 40);
    CHECK(work.pieces[1].elems == 7);
    CHECK(work.pieces[1].offset_bytes == 192);
    CHECK(work.bytes == 188);
    CHECK(work.extent_bytes == 220);
    CHECK(work.pieces[0].layout.recv == (rank == 0 ? 0 : 7));
  }
}

TEST_CASE("the shipped models have as many tensors and parameters as published") {
  for (const List& list :
       {List{"resnet50", 161, 25557032}, List{"bert_base", 199, 109482240}, List{"llama_7b", 291, 6738415616}}) {
    std::vector<Tensor> tensors;
    INFO(list.name);
    const std::string path = tutti_test::beside_program(std::string("../../tools/perf/models/") + list.name + ".txt");
    REQUIRE(static_cast<bool>(load_tensors(path, &tensors)));
    size_t sum = 0;
    std::vector<std::string> names;
    for (const Tensor& t : tensors) {
      sum += t.count;
      names.push_back(t.name);
    }
    CHECK(tensors.size() == list.tensors);
    CHECK(sum == list.elements);
    std::sort(names.begin(), names.end());
    CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  }
}

TEST_CASE("lists of tensors are read, or refused with the line") {
  char path[] = "/tmp/tutti_tensors_XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  const auto load = [&](const std::string& content, std::vector<Tensor>* tensors) {
    REQUIRE(ftruncate(fd, 0) == 0);
    REQUIRE(pwrite(fd, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
    const Status s = load_tensors(path, tensors);
    return s ? std::string() : s.error().message;
  };
  std::vector<Tensor> tensors;
  CHECK(load("# comment\n\na 5 # five\n7\n  b\t0", &tensors).empty());
  REQUIRE(tensors.size() == 3);
  CHECK(tensors[0].name == "a");
  CHECK(tensors[0].count == 5);
  CHECK(tensors[1].count == 7);
  CHECK(tensors[2].count == 0);
  CHECK(says(load("a 5\nb -3\n", &tensors), ":2:"));
  CHECK(says(load("a 5 6\n", &tensors), ":1:"));
  CHECK(says(load("a\n", &tensors), ":1:"));
  CHECK(says(load("a 99999999999999999999\n", &tensors), ":1:"));
  CHECK(says(load("# nothing\n", &tensors), "no tensors"));
  close(fd);
  unlink(path);
  CHECK_FALSE(load_tensors(path, &tensors));
  CHECK_FALSE(load_tensors("no_such_model", &tensors));
}

TEST_CASE("a soak keeps the latest times, however many there were") {
  using tutti::soak::Samples;
  const auto samples = std::make_unique<Samples>();
  samples->add(1'000'000);
  CHECK(samples->kept() == 1);
  samples->n = Samples::kMost;
  samples->add(7'000'000);
  CHECK(samples->ms[0] == 7);
  samples->n = uint64_t{1} << 31;  // beyond what an int counts
  samples->add(8'000'000);
  CHECK(samples->ms[0] == 8);
  CHECK(samples->kept() == Samples::kMost);
}
