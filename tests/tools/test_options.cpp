#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "catch.h"
#include "options.h"

using namespace tutti::perf;

namespace {

const Collective kReduction = {.tool = "tool_perf",
                               .call = "tuttiTool",
                               .has_op = true,
                               .has_root = true,
                               .layout = nullptr,
                               .bus_factor = nullptr,
                               .run = nullptr,
                               .count_wrong = nullptr};

Status parse(std::vector<const char*> args, Options* options, const Collective& collective = kReduction) {
  args.insert(args.begin(), "tool_perf");
  return parse_options(static_cast<int>(args.size()), args.data(), collective, options);
}

Options parsed(const std::vector<const char*>& args, const Collective& collective = kReduction) {
  Options options;
  const Status s = parse(args, &options, collective);
  INFO((s ? "" : s.error().message));
  REQUIRE(static_cast<bool>(s));
  return options;
}

std::string refusal(const std::vector<const char*>& args) {
  Options options;
  const Status s = parse(args, &options);
  INFO(args[0]);
  REQUIRE_FALSE(static_cast<bool>(s));
  CHECK(s.error().exit_status == kExitUsage);
  return s.error().message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<size_t> sizes(const Options& options, size_t elem_bytes) {
  std::vector<size_t> all = {options.min_bytes};
  for (size_t size = options.min_bytes; next_size(options, elem_bytes, &size);) all.push_back(size);
  return all;
}

}  // namespace

TEST_CASE("without flags the options are nccl-tests' defaults") {
  const Options o = parsed({});
  CHECK(o.min_bytes == 32u << 20);
  CHECK(o.max_bytes == 32u << 20);
  CHECK(o.step_bytes == 1u << 20);
  CHECK(o.step_factor == 1);
  CHECK(o.iters == 20);
  CHECK(o.warmup_iters == 1);
  CHECK(o.agg_iters == 1);
  CHECK(o.run_cycles == 1);
  CHECK(o.check_iters == 1);
  CHECK(o.types == std::vector<tuttiDataType_t>{tuttiFloat32});
  CHECK(o.ops == std::vector<tuttiRedOp_t>{tuttiSum});
  CHECK(o.root == 0);
  CHECK(o.threads == 1);
  CHECK(o.average == 1);
  CHECK(o.blocking == 0);
}

TEST_CASE("short and long flags mean the same") {
  const Options s =
      parsed({"-b", "8",      "-e", "1G",   "-f", "2", "-n", "7", "-w", "3", "-m", "4", "-N", "5", "-c", "6",
              "-o", "max",    "-d", "half", "-r", "2", "-t", "3", "-z", "1", "-T", "9", "-C", "1", "-S", "1",
              "-J", "x.json", "-a", "3",    "-R", "1", "-u", "5", "-I", "1", "-g", "1", "-p", "1", "-M", "1"});
  const Options l = parsed({"--minbytes",
                            "8",
                            "--maxbytes",
                            "1G",
                            "--stepfactor",
                            "2",
                            "--iters",
                            "7",
                            "--warmup_iters",
                            "3",
                            "--agg_iters",
                            "4",
                            "--run_cycles",
                            "5",
                            "--check",
                            "6",
                            "--op",
                            "max",
                            "--datatype",
                            "half",
                            "--root",
                            "2",
                            "--nthreads",
                            "3",
                            "--blocking",
                            "1",
                            "--timeout",
                            "9",
                            "--report_cputime",
                            "1",
                            "--report_timestamps",
                            "1",
                            "--output_file",
                            "x.json",
                            "--average",
                            "3",
                            "--local_register",
                            "1",
                            "--unalign",
                            "5",
                            "--per_iter_timing",
                            "1",
                            "--ngpus",
                            "1",
                            "--parallel_init",
                            "1",
                            "--memory",
                            "1"});
  for (const Options& o : {s, l}) {
    CHECK(o.min_bytes == 8);
    CHECK(o.max_bytes == 1u << 30);
    CHECK(o.step_factor == 2);
    CHECK(o.iters == 7);
    CHECK(o.warmup_iters == 3);
    CHECK(o.agg_iters == 4);
    CHECK(o.run_cycles == 5);
    CHECK(o.check_iters == 6);
    CHECK(o.ops == std::vector<tuttiRedOp_t>{tuttiMax});
    CHECK(o.types == std::vector<tuttiDataType_t>{tuttiFloat16});
    CHECK(o.root == 2);
    CHECK(o.threads == 3);
    CHECK(o.blocking == 1);
    CHECK(o.timeout_seconds == 9);
    CHECK(o.cpu_time);
    CHECK(o.timestamps);
    CHECK(o.json_path == "x.json");
    CHECK(o.average == 3);
    CHECK(o.registration == 1);
    CHECK(o.memory_report);
    CHECK(o.unalign_elems == 5);
    CHECK(o.per_iter_timing);
    CHECK(o.parallel_init);
  }
}

TEST_CASE("all stands for every type, operator and root") {
  const Options o = parsed({"-d", "all", "-o", "all", "-r", "all"});
  CHECK(o.types.size() == tuttiNumTypes);
  CHECK(o.ops.size() == tuttiNumOps + 1);
  CHECK(parsed({"-o", "mulsum"}).ops == std::vector<tuttiRedOp_t>{tuttiNumOps});
  CHECK(o.root == kAllRoots);
  CHECK(parsed({"-r", "-1"}).root == kAllRoots);
}

TEST_CASE("where buffers are, and which stream that makes the usual one") {
  CHECK(parsed({}).device == kHostMemory);
  CHECK(parsed({"--device", "host"}).null_stream);
  CHECK(parsed({"--device", "cuda"}).device == kEachItsDevice);
  CHECK_FALSE(parsed({"--device", "cuda"}).null_stream);
  CHECK(parsed({"--device", "cuda:12", "-y", "1"}).device == 12);
  CHECK(parsed({"--device", "cuda:12", "-y", "1"}).null_stream);
  for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999", ""})
    CHECK(contains(refusal({"--device", wrong}), "must be host, cuda or cuda:N"));
}

TEST_CASE("where no data is moved there is one size and one type") {
  Collective barrier = kReduction;
  barrier.has_data = false;
  const Options o = parsed({"-d", "all", "-b", "8", "-e", "1G", "-f", "2", "--sizes-from", "resnet50"}, barrier);
  CHECK(sizes(o, 1) == std::vector<size_t>{0});
  CHECK(o.types.size() == 1);
  CHECK(o.sizes_from.empty());
  CHECK(contains(parsed({"-h"}, barrier).help, "moves no data"));
}

TEST_CASE("the last of repeated flags counts") {
  CHECK(parsed({"-n", "3", "-n", "5"}).iters == 5);
}

TEST_CASE("help is asked for, not an error") {
  const Options o = parsed({"-h"});
  CHECK(contains(o.help, "--minbytes"));
  CHECK(contains(o.help, "tool_perf --procs 4"));
}

TEST_CASE("what cannot be done is refused with the flag and the reason") {
  CHECK(contains(refusal({"-b", "1M", "-e", "8"}), "-b 1M is more than -e 8"));
  CHECK(contains(refusal({"-b", "12Q"}), "-b 12Q"));
  CHECK(contains(refusal({"-e", "-5"}), "-e -5"));
  CHECK(contains(refusal({"-e", ""}), "-e "));
  CHECK(contains(refusal({"-e", "1.2.3"}), "-e 1.2.3"));
  CHECK(contains(refusal({"-e", "99999999T"}), "-e 99999999T"));
  CHECK(contains(refusal({"-i", "0", "-b", "1"}), "-i 0"));
  CHECK(contains(refusal({"-f", "0"}), "-f 0"));
  CHECK(contains(refusal({"-d", "float128"}), "float128"));
  CHECK(contains(refusal({"-o", "xor"}), "-o xor"));
  CHECK(contains(refusal({"-r", "first"}), "-r first"));
  CHECK(contains(refusal({"-r", "-2"}), "-r -2"));
  CHECK(contains(refusal({"-g", "2"}), "-g 2"));
  CHECK(contains(refusal({"-G", "1"}), "no graphs"));
  CHECK(contains(refusal({"-G", "1", "--device", "cuda", "-y", "1"}), "leave out -y 1"));
  CHECK(contains(refusal({"-G", "1", "--device", "cuda", "-z", "2"}), "leave out -z"));
  CHECK(contains(refusal({"-G", "1", "--device", "cuda", "-I", "1"}), "leave out -I"));
  CHECK(contains(refusal({"-G", "1", "--device", "cuda", "-w", "0"}), "-w 1 or more"));
  CHECK(contains(refusal({"-G", "-1"}), "-G -1"));
  CHECK(contains(refusal({"-R", "3"}), "-R 3"));
  CHECK(contains(refusal({"-D", "1"}), "-D 1: there are no GPU kernels"));
  CHECK(contains(refusal({"-V", "16"}), "-V 16: sets blocks of GPU threads"));
  CHECK(contains(refusal({"-x", "0"}), "-x 0: sets blocks of GPU threads"));
  CHECK(contains(refusal({"-t", "0"}), "-t 0"));
  CHECK(contains(refusal({"--procs", "-1"}), "--procs -1"));
  CHECK(contains(refusal({"-n", "0"}), "-n 0"));
  CHECK(contains(refusal({"-a", "4"}), "-a 4"));
  CHECK(contains(refusal({"-z", "4"}), "-z 4"));
  CHECK(contains(refusal({"-u", "-1"}), "-u -1"));
  CHECK(contains(refusal({"-K", "1"}), "-I 1"));
  CHECK(contains(refusal({"-I", "1", "-n", "5", "-K", "5"}), "-K 5"));
  CHECK(parsed({"-I", "1", "-n", "5", "-K", "4"}).per_iter_skip == 4);
  CHECK(contains(refusal({"-m", "0"}), "-m 0"));
  CHECK(contains(refusal({"-n", "many"}), "many"));
  CHECK(contains(refusal({"--no-such-flag"}), "--no-such-flag"));
  CHECK(contains(refusal({"stray"}), "stray"));
}

TEST_CASE("sizes are bytes with powers of 1024") {
  struct Case {
    const char* text;
    size_t bytes;
  };
  const Case cases[] = {{"0", 0},         {"8", 8},           {"64K", 65536},          {"64k", 65536},
                        {"3M", 3u << 20}, {"1.5M", 3u << 19}, {"2G", size_t{2} << 30}, {"1T", size_t{1} << 40}};
  for (const Case& c : cases) {
    size_t bytes = 1;
    INFO(c.text);
    CHECK(static_cast<bool>(parse_size(c.text, "-b", &bytes)));
    CHECK(bytes == c.bytes);
  }
}

TEST_CASE("sizes run from the smallest to the largest") {
  using Sizes = std::vector<size_t>;
  CHECK(sizes(parsed({"-b", "8", "-e", "64", "-f", "2"}), 4) == Sizes{8, 16, 32, 64});
  CHECK(sizes(parsed({"-b", "8", "-e", "63", "-f", "2"}), 4) == Sizes{8, 16, 32});
  CHECK(sizes(parsed({"-b", "0", "-e", "64", "-f", "4"}), 4) == Sizes{0, 4, 16, 64});
  CHECK(sizes(parsed({"-b", "0", "-e", "0", "-f", "4"}), 4) == Sizes{0});
  CHECK(sizes(parsed({"-b", "0", "-e", "10", "-i", "4"}), 4) == Sizes{0, 4, 8});
  CHECK(sizes(parsed({"-b", "7", "-e", "7", "-i", "0"}), 4) == Sizes{7});
  CHECK(sizes(parsed({}), 4) == Sizes{32u << 20});
  CHECK(sizes(parsed({"-b", "1T", "-e", "2T", "-f", "1000000000"}), 4) == Sizes{size_t{1} << 40});
}

TEST_CASE("the algorithms are the library's") {
  const auto names_in = [](const std::string& message) {
    const std::string before = "choose one of: ";
    REQUIRE(contains(message, before));
    std::istringstream words(message.substr(message.find(before) + before.size()));
    std::set<std::string> names;
    for (std::string name; words >> name;) names.insert(name.substr(0, name.find(',')));
    return names;
  };
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.algo = "rong";
  tuttiUniqueId id;
  REQUIRE(tuttiGetUniqueId(&id) == tuttiSuccess);
  tuttiComm_t comm = nullptr;
  REQUIRE(tuttiCommInitRankConfig(&comm, 1, id, 0, &config) != tuttiSuccess);
  const std::set<std::string> names = names_in(tuttiGetLastError(nullptr));
  CHECK(names.size() > 5);
  CHECK(names_in(refusal({"--algo", "rong"})) == names);
  for (const std::string& name : names) CHECK(parsed({"--algo", name.c_str()}).algo == name);
  for (const char* former : {"star", "halving", "rabenseifner"}) CHECK(parsed({"--algo", former}).algo == former);
}

TEST_CASE("sizes from a list leave no others") {
  for (const char* option : {"-b", "-e", "-i", "-f"})
    CHECK(contains(refusal({"--sizes-from", "resnet50", option, "8"}), "has no effect with --sizes-from"));
  CHECK(parsed({"--sizes-from", "resnet50"}).sizes_from == "resnet50");
}
