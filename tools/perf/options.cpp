#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <string_view>

#include "../cli/command_line.h"
#include "types.h"

namespace tutti::perf {
namespace {

// Filled in by CLI11; texts become values after parsing, so that all error messages look alike.
struct Raw {
  std::string min_bytes = "32M", max_bytes = "32M", step_bytes = "1M";
  std::string op = "sum", type = "float", root = "0", wire = "int8";
  bool gave_min = false, gave_max = false;
  const char* gave_size = nullptr;  // one of the options for sizes, if any was given
  long long step_factor = 1;
  int gpus = 1, device_kernels = 0, parallel_init = 0, null_stream = -1;
  std::string device = "host";
  std::string device_blocks, block_policy;
  long long unalign = 0;
};

// The library's names, which it would check only once there are ranks; a test compares them.
constexpr std::string_view kAlgorithms[] = {"ring",     "tree",   "direct",       "oneshot", "circulant",
                                            "doubling", "linear", "hierarchical", "racks",   "chain"};
constexpr std::string_view kFormerNames[] = {"star", "halving", "rabenseifner"};

const char* const kExamples =
    "\nSizes take K, M and G (powers of 1024). Ranks are threads (-t) of processes (--procs, or a launcher's).\n"
    "Exit status: 0 good, 1 wrong data, 2 wrong usage, 3 a rank failed.\n"
    "\nExamples:\n"
    "  @ --procs 4 -b 8 -e 128M -f 2          four local processes, 8 bytes to 128 MiB, doubling\n"
    "  @ -t 2 -b 1M -e 4M -i 1M -n 100        two threads, steps of 1 MiB, 100 operations each\n"
    "  @ --procs 2 -d all -c 10 -b 0 -e 64K -f 4   check every type ten times per size\n"
    "  @ --procs 2 --transport tcp --algo tree -J out.json\n"
    "  @ --procs 4 --sizes-from resnet50      one training step's gradients\n"
    "  @ -t 2 --device cuda -b 8 -e 1G -f 4   two ranks, on two GPUs, or sharing the only one\n"
    "  mpirun -np 8 @ -b 8 -e 1G -f 4         or srun: one rank for each process\n"
    "  torchrun --no-python --nproc-per-node 8 @    the same, started by torchrun\n";

// Those that the tool can run.
std::string examples_of(const Collective& collective) {
  std::string examples = kExamples;
  const auto leave_out = [&](const char* option) {
    const size_t at = examples.rfind('\n', examples.find(option));
    examples.erase(at, examples.find('\n', at + 1) - at);
  };
  if (collective.quantises) leave_out("-d all");
  if (!collective.has_data) leave_out("--sizes-from");
  for (size_t at; (at = examples.find('@')) != std::string::npos;) examples.replace(at, 1, collective.tool);
  return examples;
}

std::string algorithm_list() {
  std::string list;
  for (const std::string_view name : kAlgorithms) list.append(list.empty() ? "" : ", ").append(name);
  return list;
}

void add_size_options(CLI::App& app, Options& o, Raw& raw) {
  app.add_option("-b,--minbytes", raw.min_bytes, "smallest size")->group("Sizes");
  app.add_option("-e,--maxbytes", raw.max_bytes, "largest size")->group("Sizes");
  app.add_option("-i,--stepbytes", raw.step_bytes, "add this to get the next size")->group("Sizes");
  app.add_option("-f,--stepfactor", raw.step_factor, "multiply by this instead; 1 is off")->group("Sizes");
  app.add_option(
         "--sizes-from", o.sizes_from,
         "file of 'name count' lines, or a shipped one (resnet50, bert_base, llama_7b): all tensors are one operation")
      ->group("Sizes");
}

void add_operation_options(CLI::App& app, Options& o, Raw& raw, const Collective& collective) {
  app.add_option("-o,--op", raw.op,
                 collective.quantises ? "sum or avg"
                 : collective.has_op  ? "sum, prod, min, max, avg, mulsum or all"
                                      : "not used here")
      ->group("Operation");
  app.add_option("-d,--datatype", raw.type,
                 collective.quantises
                     ? "only float"
                     : "int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2 or all")
      ->group("Operation");
  app.add_option("-r,--root", raw.root, collective.has_root ? "root rank, or all" : "not used here")
      ->group("Operation");
  if (collective.quantises)
    app.add_option("--wire", raw.wire, "the type that travels, in blocks of 128: int8 or f8e4m3")
        ->group("Operation")
        ->check(CLI::IsMember({"int8", "f8e4m3"}));
  app.add_option("--algo", o.algo, algorithm_list() + "; otherwise by size")->group("Operation");
  app.add_option("--transport", o.transports, "allowed transports in order of preference: shm,tcp")->group("Operation");
}

void add_rank_options(CLI::App& app, Options& o, Raw& raw) {
  app.add_option("--procs", o.procs, "fork this many local processes; 0: the launcher's, else this one")
      ->group("Ranks");
  app.add_option("-t,--nthreads", o.threads, "ranks as threads of each process")->group("Ranks");
  app.add_option("-g,--ngpus", raw.gpus, "only 1: ranks are threads and processes here")->group("Ranks");
  app.add_option("--device", raw.device,
                 "where buffers are: host; cuda: rank r on CUDA device r modulo their number; cuda:N: all on that one")
      ->group("Ranks");
  app.add_option("-p,--parallel_init", raw.parallel_init, "accepted; ranks always start in parallel")->group("Ranks");
  app.add_option("-T,--timeout", o.timeout_seconds,
                 "seconds an operation may wait without progress; 0: TUTTI_OP_TIMEOUT")
      ->group("Ranks");
  app.add_option("--grace", o.grace_seconds, "with --procs: seconds that the others have to end after one has failed")
      ->group("Ranks");
}

void add_measuring_options(CLI::App& app, Options& o, Raw& raw) {
  const char* group = "Measuring";
  app.add_option("-n,--iters", o.iters, "timed iterations")->group(group);
  app.add_option("-w,--warmup_iters", o.warmup_iters, "iterations before the timed ones")->group(group);
  app.add_option("-m,--agg_iters", o.agg_iters, "operations in one iteration, as one group (-z 1 and 2: one by one)")
      ->group(group);
  app.add_option("-N,--run_cycles", o.run_cycles, "repeat all sizes; 0: for ever")->group(group);
  app.add_option("-c,--check", o.check_iters, "checked operations per size, apart from timing; 0: none")->group(group);
  app.add_option("-z,--blocking", o.blocking,
                 "0: iterations follow at once (on host memory each still ends before the next begins); 1: a barrier "
                 "after each operation; 2: wait for each; 3: a barrier after each iteration, not timed")
      ->group(group);
  app.add_option(
         "-y,--stream_null", raw.null_stream,
         "1: run on the caller's thread, or CUDA's default stream; 0: queue on a stream; otherwise 1 on the host, "
         "0 on a device")
      ->group(group);
  app.add_option("-a,--average", o.average, "time over ranks: 0 rank 0's, 1 average, 2 min, 3 max")->group(group);
  app.add_option("-R,--local_register", o.registration,
                 "1 or 2: buffers from tuttiMemAlloc (with --device cuda: device memory), registered; 0: plain ones")
      ->group(group);
  app.add_option("-u,--unalign", raw.unalign, "move the buffers by this many elements")->group(group);
  app.add_option("-G,--cudagraph", o.graph_launches,
                 "with --device cuda: capture the iterations into a CUDA graph and launch it this many times")
      ->group(group);
  app.add_option("-D,--device_implementation", raw.device_kernels, "only 0: no GPU kernels")->group(group);
  app.add_option("-V,--device_cta_count", raw.device_blocks, "refused: no GPU kernels")->group(group);
  app.add_option("-x,--cta_policy", raw.block_policy, "refused: no GPU kernels")->group(group);
}

void add_report_options(CLI::App& app, Options& o) {
  app.add_option("-C,--report_cputime", o.cpu_time, "1: CPU time of the calling thread")->group("Report");
  app.add_option("-S,--report_timestamps", o.timestamps, "1: a time stamp in each row")->group("Report");
  app.add_option("-I,--per_iter_timing", o.per_iter_timing, "1: spread of the iterations' times")->group("Report");
  app.add_option("-K,--per_iter_skip", o.per_iter_skip, "leave this many iterations out of -I")->group("Report");
  app.add_option("-M,--memory", o.memory_report, "1: how much memory rank 0's process used")->group("Report");
  app.add_flag("--explain", o.explain, "after each row: what the library chose and why (tuttiExplain)")
      ->group("Report");
  app.add_flag("--first", o.first, "after each row: how long the first operation of the size took")->group("Report");
  app.add_option("-J,--output_file", o.json_path, "write JSON there ('-': stdout, and the table to stderr)")
      ->group("Report");
}

constexpr int kMany = 1 << 30, kMostRanks = 1 << 16;

Status check_range(int value, int least, int most, const char* option) {
  if (value >= least && value <= most) return {};
  if (most == kMany && value < least) return usage_error(text("%s %d: must be at least %d", option, value, least));
  return usage_error(text("%s %d: must be from %d to %d", option, value, least, most));
}

Status check_counts(const Options& o) {
  struct Limit {
    int value, least, most;
    const char* option;
  };
  const Limit limits[] = {
      {o.iters, 1, kMany, "-n"},
      {o.warmup_iters, 0, kMany, "-w"},
      {o.agg_iters, 1, kMany, "-m"},
      {o.run_cycles, 0, kMany, "-N"},
      {o.check_iters, 0, kMany, "-c"},
      {o.threads, 1, 4096, "-t"},
      {o.procs, 0, kMostRanks, "--procs"},
      {o.timeout_seconds, 0, kMany, "-T"},
      {o.average, 0, 3, "-a"},
      {o.blocking, 0, 3, "-z"},
      {o.per_iter_skip, 0, kMany, "-K"},
      {o.grace_seconds, 0, kMany, "--grace"},
      {o.registration, 0, 2, "-R"},
      {o.graph_launches, 0, kMany, "-G"},
  };
  for (const Limit& limit : limits) {
    if (Status s = check_range(limit.value, limit.least, limit.most, limit.option); !s) return s;
  }
  if (o.per_iter_skip > 0 && (!o.per_iter_timing || o.per_iter_skip >= o.iters)) {
    return usage_error(text("-K %d: needs -I 1 and more iterations (-n) than that", o.per_iter_skip));
  }
  return {};
}

Status check_algorithm(const std::string& name) {
  const auto is_one_of = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (name.empty() || is_one_of(kAlgorithms) || is_one_of(kFormerNames)) return {};
  return usage_error(
      text("--algo %s: there is no such algorithm; choose one of: %s", name.c_str(), algorithm_list().c_str()));
}

Status check_refused(const Raw& raw) {
  if (raw.gpus != 1) {
    return usage_error(text("-g %d: a thread drives one rank on host memory; use -t or --procs", raw.gpus));
  }
  if (raw.device_kernels != 0) {
    return usage_error(text("-D %d: there are no GPU kernels on host memory; leave it out", raw.device_kernels));
  }
  for (const auto& [option, value] : {std::pair{"-V", raw.device_blocks}, {"-x", raw.block_policy}}) {
    if (value.empty()) continue;
    return usage_error(text("%s %s: sets blocks of GPU threads; on host memory leave it out", option, value.c_str()));
  }
  if (Status s = check_range(raw.null_stream, -1, 1, "-y"); !s) return s;
  if (Status s = check_range(raw.parallel_init, 0, 1, "-p"); !s) return s;
  if (raw.unalign < 0 || raw.unalign > 1 << 20) {
    return usage_error(text("-u %lld: must be from 0 to 1048576 elements", raw.unalign));
  }
  return {};
}

Status convert_sizes(const Raw& raw, Options* o) {
  if (Status s = parse_size(raw.min_bytes, "-b", &o->min_bytes); !s) return s;
  if (Status s = parse_size(raw.max_bytes, "-e", &o->max_bytes); !s) return s;
  if (Status s = parse_size(raw.step_bytes, "-i", &o->step_bytes); !s) return s;
  if (raw.step_factor < 1 || raw.step_factor > 1 << 30) {
    return usage_error(text("-f %lld: must be at least 1 (1: use -i instead)", raw.step_factor));
  }
  o->step_factor = static_cast<size_t>(raw.step_factor);
  if (o->min_bytes > o->max_bytes) {
    const char* remedy = raw.gave_min && raw.gave_max ? "swap them"
                         : raw.gave_min               ? "give a larger -e as well"
                                                      : "give a smaller -b as well";
    return usage_error(text("-b %s%s is more than -e %s%s: %s", raw.min_bytes.c_str(),
                            raw.gave_min ? "" : " (the default)", raw.max_bytes.c_str(),
                            raw.gave_max ? "" : " (the default)", remedy));
  }
  if (o->step_factor == 1 && o->step_bytes == 0 && o->min_bytes < o->max_bytes) {
    return usage_error("-i 0 never gets from -b to -e; give a step, or -f 2");
  }
  return {};
}

Status convert_type(const std::string& name, Options* o) {
  o->types.clear();
  for (const TypeInfo& info : kTypes) {
    if (name == "all" || name == info.name) o->types.push_back(info.type);
  }
  if (!o->types.empty()) return {};
  std::string known;
  for (const TypeInfo& info : kTypes) known += std::string(info.name) + " ";
  return usage_error(text("-d %s: there is no such type; use one of: %sall", name.c_str(), known.c_str()));
}

Status convert_op(const std::string& name, Options* o) {
  o->ops.clear();
  for (size_t i = 0; i < kOpNames.size(); i++) {
    if (name == "all" || name == kOpNames[i]) o->ops.push_back(static_cast<tuttiRedOp_t>(i));
  }
  if (!o->ops.empty()) return {};
  return usage_error(text("-o %s: must be sum, prod, min, max, avg, mulsum or all", name.c_str()));
}

// Only floats are quantised, and only sums and averages of them.
Status convert_quantised(const Raw& raw, Options* o) {
  if (raw.type == "all") o->types = {tuttiFloat32};
  if (raw.op == "all") o->ops = {tuttiSum, tuttiAvg};
  for (const tuttiDataType_t type : o->types)
    if (type != tuttiFloat32) return usage_error(text("-d %s: only float is quantised", raw.type.c_str()));
  for (const tuttiRedOp_t op : o->ops)
    if (op != tuttiSum && op != tuttiAvg)
      return usage_error(text("-o %s: quantised blocks have sum and avg only", raw.op.c_str()));
  return {};
}

Status convert_root(const std::string& root, Options* o) {
  o->root = kAllRoots;
  if (root == "all" || root == "-1") return {};
  const bool digits = !root.empty() && root.size() < 9 && root.find_first_not_of("0123456789") == std::string::npos;
  if (!digits) return usage_error(text("-r %s: must be a rank or all", root.c_str()));
  o->root = std::stoi(root);
  return {};
}

Status convert_device(const std::string& name, Options* o) {
  const std::string number = name.rfind("cuda:", 0) == 0 ? name.substr(5) : "";
  const bool digits =
      !number.empty() && number.size() < 5 && number.find_first_not_of("0123456789") == std::string::npos;
  if (name != "host" && name != "cuda" && !digits)
    return usage_error(text("--device %s: must be host, cuda or cuda:N", name.c_str()));
  o->device = name == "host" ? kHostMemory : digits ? std::stoi(number) : kEachItsDevice;
  return {};
}

// Captured operations must have run before, and cannot wait.
Status check_graph(const Options& o) {
  if (o.graph_launches == 0) return {};
  const char* why = o.device == kHostMemory ? "there are no graphs on host memory; give --device cuda"
                    : o.null_stream         ? "CUDA's default stream cannot be captured; leave out -y 1"
                    : o.blocking != 0       ? "a graph cannot contain waits; leave out -z"
                    : o.per_iter_timing     ? "a graph's iterations cannot be timed one by one; leave out -I"
                    : o.warmup_iters == 0 ? "operations must have run once before they are captured; give -w 1 or more"
                                          : nullptr;
  if (why == nullptr) return {};
  return usage_error(text("-G %d: %s", o.graph_launches, why));
}

Status convert(const Raw& raw, const Collective& collective, Options* o) {
  if (Status s = check_refused(raw); !s) return s;
  if (Status s = check_counts(*o); !s) return s;
  if (Status s = check_algorithm(o->algo); !s) return s;
  if (collective.has_data && !o->sizes_from.empty() && raw.gave_size != nullptr)
    return usage_error(text("%s has no effect with --sizes-from; leave one of them out", raw.gave_size));
  if (Status s = convert_sizes(raw, o); !s) return s;
  if (Status s = convert_type(raw.type, o); !s) return s;
  if (Status s = convert_op(raw.op, o); !s) return s;
  if (Status s = collective.quantises ? convert_quantised(raw, o) : Status{}; !s) return s;
  if (Status s = convert_root(raw.root, o); !s) return s;
  if (Status s = convert_device(raw.device, o); !s) return s;
  if (!collective.has_op) o->ops = {tuttiSum};
  if (!collective.has_root) o->root = 0;
  if (!collective.has_data) {
    o->min_bytes = o->max_bytes = 0;
    o->types = {tuttiInt8};
    o->sizes_from.clear();
  }
  o->wire = raw.wire == "int8" ? tuttiInt8 : tuttiFloat8e4m3;
  o->null_stream = raw.null_stream == -1 ? o->device == kHostMemory : raw.null_stream == 1;
  o->parallel_init = raw.parallel_init == 1;
  o->unalign_elems = static_cast<size_t>(raw.unalign);
  return check_graph(*o);
}

}  // namespace

Status parse_options(int argc, const char* const* argv, const Collective& collective, Options* options) {
  *options = Options{};
  options->args.assign(argv, argv + argc);
  Raw raw;
  const char* remark = collective.has_data ? "" : " It moves no data: sizes and types are accepted and do nothing.";
  CLI::App app(text("Measures and checks %s.%s", collective.call, remark), collective.tool);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->always_capture_default();
  app.footer(examples_of(collective));
  add_size_options(app, *options, raw);
  add_operation_options(app, *options, raw, collective);
  add_rank_options(app, *options, raw);
  add_measuring_options(app, *options, raw);
  add_report_options(app, *options);
  try {  // CLI11 reports errors by exceptions
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    options->help = app.help();
    return {};
  } catch (const CLI::ParseError& e) {
    return usage_error(cli::complaint(app, e));
  }
  raw.gave_min = app.count("-b") > 0;
  raw.gave_max = app.count("-e") > 0;
  for (const char* option : {"-b", "-e", "-i", "-f"})
    if (app.count(option) > 0) raw.gave_size = option;
  return convert(raw, collective, options);
}

Status parse_size(const std::string& text_in, const char* option, size_t* bytes) {
  const std::string units = "KMGT";
  std::string number = text_in;
  double scale = 1;
  if (!number.empty()) {
    const size_t unit = units.find(static_cast<char>(toupper(number.back())));
    if (unit != std::string::npos) {
      scale = std::exp2(10.0 * static_cast<double>(unit + 1));
      number.pop_back();
    }
  }
  const bool plain = number.find_first_not_of("0123456789.") == std::string::npos &&
                     number.find_first_of("0123456789") != std::string::npos &&
                     std::count(number.begin(), number.end(), '.') <= 1;
  const double value = plain ? strtod(number.c_str(), nullptr) * scale : -1;
  if (value < 0 || value > std::exp2(53)) {
    return usage_error(text("%s %s: must be a size in bytes such as 8, 64K, 1.5M or 2G", option, text_in.c_str()));
  }
  *bytes = static_cast<size_t>(value);
  return {};
}

bool next_size(const Options& options, size_t elem_bytes, size_t* size) {
  const size_t room = options.max_bytes - *size;
  if (options.step_factor > 1) {
    if (*size > options.max_bytes / options.step_factor) return false;
    *size = *size == 0 ? elem_bytes : *size * options.step_factor;
    return *size <= options.max_bytes;
  }
  if (options.step_bytes == 0 || options.step_bytes > room) return false;
  *size += options.step_bytes;
  return true;
}

}  // namespace tutti::perf
