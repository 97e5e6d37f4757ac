#include "bench.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace bench {
namespace {

constexpr int kBatches = 3, kMostRows = 30;
constexpr long kMinOperations = 2, kMaxOperations = 100000;
constexpr size_t kElemBytes = sizeof(float);

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Small whole numbers: every sum over ranks is exact, in any order. In fresh rounds all elements of a rank are equal,
// so that writing and comparing cost no more than the memory accesses.
struct Pattern {
  bool flat;
  long round;
  float at(int rank, size_t i) const {
    return static_cast<float>((flat ? 0 : static_cast<long>(i % 1021)) + 3L * rank + round % 64);
  }
};

// What an operation reads and writes on a rank, and the expected result.
struct Shape {
  Op op;
  int rank;
  int n_ranks;
  size_t elems;  // of the size in the table
  size_t in_elems;
  size_t out_elems;

  size_t block() const { return elems / static_cast<size_t>(n_ranks); }

  float expected(const Pattern& pattern, size_t i) const {
    const auto sum = [&](size_t at) {
      float total = 0;
      for (int r = 0; r < n_ranks; r++) total += pattern.at(r, at);
      return total;
    };
    switch (op) {
      case Op::kAllReduce:
      case Op::kReduce: return sum(i);
      case Op::kReduceScatter: return sum(static_cast<size_t>(rank) * block() + i);
      case Op::kAllGather: return pattern.at(static_cast<int>(i / block()), i % block());
      case Op::kAllToAll:
        return pattern.at(static_cast<int>(i / block()), static_cast<size_t>(rank) * block() + i % block());
      case Op::kCopy: return pattern.at(rank, i);
      case Op::kBroadcast:
      case Op::kRoundTrip:
      case Op::kBarrier: break;
    }
    return pattern.at(0, i);
  }
};

Shape shape_of(Op op, int rank, int n_ranks, size_t bytes) {
  Shape shape = {op, rank, n_ranks, bytes / kElemBytes, bytes / kElemBytes, bytes / kElemBytes};
  if (op == Op::kAllGather) shape.in_elems = shape.block();
  if (op == Op::kReduceScatter) shape.out_elems = shape.block();
  if (op == Op::kBroadcast && rank == 0) shape.out_elems = 0;
  if (op == Op::kReduce && rank != 0) shape.out_elems = 0;
  if (op == Op::kBarrier) shape.in_elems = shape.out_elems = 0;
  return shape;
}

// Runs of equal elements are compared in one loop, which compilers can vectorise.
size_t count_wrong(const Shape& shape, const Pattern& pattern, const float* out) {
  const bool of_blocks = shape.op == Op::kAllGather || shape.op == Op::kAllToAll;
  const size_t run = of_blocks ? shape.block() : shape.out_elems;
  size_t wrong = 0;
  for (size_t from = 0; from < shape.out_elems; from += run) {
    if (!pattern.flat) {
      for (size_t i = from; i < from + run; i++) wrong += out[i] == shape.expected(pattern, i) ? 0 : 1;
      continue;
    }
    const float expected = shape.expected(pattern, from);
    for (size_t i = from; i < from + run; i++) wrong += out[i] == expected ? 0 : 1;
  }
  return wrong;
}

struct Seconds {
  double operation = 0;  // of one operation
  double all = 0;        // of the whole batch, including untimed work
};

class Measurement {
 public:
  Measurement(Library& library, Meet& meet, const Shape& shape, float* in, float* out)
      : library_(library), meet_(meet), shape_(shape), in_(in), out_(out) {}

  void check() {
    const Pattern pattern = {.flat = false, .round = 0};
    for (size_t i = 0; i < shape_.in_elems; i++) in_[i] = pattern.at(shape_.rank, i);
    memset(out_, 0xff, shape_.out_elems * kElemBytes);
    start_together();
    run();
    require_right(count_wrong(shape_, pattern, out_));
  }

  double exchange_us() {
    library_.barrier();
    return meet_.exchange_us();
  }

  Seconds batch(bool fresh, long operations) {
    return slowest(fresh ? fresh_batch(operations) : reused_batch(operations));
  }

 private:
  void run() {
    switch (shape_.op) {
      case Op::kAllReduce: return library_.all_reduce(in_, out_, shape_.elems);
      // The root's data are its input, so that only the other ranks' outputs are read.
      case Op::kBroadcast: return library_.broadcast(shape_.rank == 0 ? in_ : out_, shape_.elems);
      case Op::kAllGather: return library_.all_gather(in_, out_, shape_.block());
      case Op::kReduceScatter: return library_.reduce_scatter(in_, out_, shape_.block());
      case Op::kReduce: return library_.reduce(in_, out_, shape_.elems);
      case Op::kAllToAll: return library_.all_to_all(in_, out_, shape_.block());
      case Op::kCopy: return library_.copy(in_, out_, shape_.elems);
      case Op::kRoundTrip: return library_.round_trip(in_, out_, shape_.elems);
      case Op::kBarrier: return library_.barrier();
    }
  }

  // Ranks call the library's own barrier before they wait for each other outside of it: many libraries make progress
  // only while they are called, so a rank that has left an operation may hold up messages that others wait for.
  void start_together() {
    library_.barrier();
    meet_.barrier();
  }

  double max(double value) {
    library_.barrier();
    return meet_.max(value);
  }

  Seconds reused_batch(long operations) {
    start_together();
    const double start = now();
    for (long i = 0; i < operations; i++) run();
    const double all = now() - start;
    return {all / static_cast<double>(operations), all};
  }

  Seconds fresh_batch(long operations) {
    Seconds seconds;
    size_t wrong = 0;
    const double begin = now();
    for (long i = 0; i < operations; i++) {
      const Pattern pattern = {.flat = true, .round = ++round_};
      std::fill_n(in_, shape_.in_elems, pattern.at(shape_.rank, 0));
      start_together();
      const double start = now();
      run();
      seconds.operation += now() - start;
      wrong += count_wrong(shape_, pattern, out_);
    }
    seconds.all = now() - begin;
    seconds.operation /= static_cast<double>(operations);
    require_right(wrong);
    return seconds;
  }

  Seconds slowest(Seconds mine) { return {max(mine.operation), max(mine.all)}; }

  void require_right(size_t wrong) {
    if (wrong > 0) {
      fprintf(stderr, "[rank %d] %zu of %zu elements are wrong\n", shape_.rank, wrong, shape_.out_elems);
    }
    if (max(static_cast<double>(wrong)) > 0)
      fail("wrong results at " + std::to_string(shape_.elems * kElemBytes) + " bytes");
  }

  Library& library_;
  Meet& meet_;
  Shape shape_;
  float* in_;
  float* out_;
  long round_ = 0;
};

// A training run does thousands of operations, and a library may experiment during the first ones.
constexpr double kWarmUpSeconds = 0.5;
constexpr long kFewestWarmUpOperations = 100;

void warm_up(Measurement& measurement, bool fresh, long operations, long most) {
  const long fewest = std::min(most, kFewestWarmUpOperations);
  double seconds = 0;
  for (long done = 0; done < fewest || (done < most && seconds < kWarmUpSeconds); done += operations)
    seconds += measurement.batch(fresh, operations).all;
}

// The number of operations that fill `seconds`.
long operations_for(Measurement& measurement, bool fresh, double seconds) {
  long operations = 1;
  while (true) {
    const double all = measurement.batch(fresh, operations).all;
    const double share = all / (seconds / kBatches);
    if (share >= 0.2 || operations >= kMaxOperations) {
      const double wanted = static_cast<double>(operations) / share;
      return std::clamp(static_cast<long>(std::min(wanted, 1e9)), kMinOperations, kMaxOperations);
    }
    operations *= 4;
  }
}

void measure_size(Measurement& measurement, Meet& meet, const Settings& settings, size_t bytes) {
  measurement.check();
  for (const bool fresh : {false, true}) {
    if (fresh ? !settings.fresh : !settings.reused) continue;
    const long operations = settings.row > 0 ? settings.row : operations_for(measurement, fresh, settings.seconds);
    warm_up(measurement, fresh, operations, settings.warm_up);
    const int most = settings.row > 0 ? kMostRows : kBatches;
    double spent = 0;  // equal on all ranks
    for (int i = 0; i < kBatches || (i < most && spent < settings.seconds); i++) {
      const double before_us = measurement.exchange_us();
      const Seconds seconds = measurement.batch(fresh, operations);
      const double after_us = measurement.exchange_us();
      spent += seconds.all;
      if (meet.rank() == 0)
        printf("%s %zu %ld %.4f %.4f %.4f\n", fresh ? "fresh" : "reused", bytes, operations, seconds.operation * 1e6,
               before_us, after_us);
    }
  }
  measurement.check();
}

[[noreturn]] void unsupported(const char* what) {
  fail(std::string("this library's program does not support ") + what);
}

std::vector<size_t> parse_sizes(const std::string& text) {
  std::vector<size_t> sizes;
  for (size_t from = 0; from < text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    const std::string number = text.substr(from, comma - from);
    char* end = nullptr;
    const size_t bytes = strtoull(number.c_str(), &end, 10);
    if (*end != 0 || bytes == 0 || bytes % kElemBytes != 0) {
      fail("--sizes: '" + number + "' is not a positive multiple of 4");
    }
    sizes.push_back(bytes);
    from = comma + 1;
  }
  return sizes;
}

Op parse_op(const std::string& name) {
  static const std::map<std::string, Op> ops = {{"all_reduce", Op::kAllReduce},
                                                {"broadcast", Op::kBroadcast},
                                                {"all_gather", Op::kAllGather},
                                                {"reduce_scatter", Op::kReduceScatter},
                                                {"reduce", Op::kReduce},
                                                {"all_to_all", Op::kAllToAll},
                                                {"copy", Op::kCopy},
                                                {"round_trip", Op::kRoundTrip},
                                                {"barrier", Op::kBarrier}};
  const auto found = ops.find(name);
  if (found == ops.end()) fail("--op: there is no '" + name + "'");
  return found->second;
}

void set_modes(Settings& settings, const std::string& name) {
  if (name != "reused" && name != "fresh" && name != "both") fail("--modes: reused, fresh or both, not '" + name + "'");
  settings.reused = name != "fresh";
  settings.fresh = name != "reused";
}

int exit_status_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

void fail(const std::string& message) {
  fprintf(stderr, "%s\n", message.c_str());
  fflush(stdout);
  _exit(1);
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--op")
      settings.op = parse_op(value);
    else if (name == "--sizes")
      settings.sizes_bytes = parse_sizes(value);
    else if (name == "--modes")
      set_modes(settings, value);
    else if (name == "--seconds")
      settings.seconds = strtod(value.c_str(), nullptr);
    else if (name == "--row")
      settings.row = strtol(value.c_str(), nullptr, 10);
    else if (name == "--warm-up")
      settings.warm_up = strtol(value.c_str(), nullptr, 10);
    else if (name == "--ranks")
      settings.n_ranks = static_cast<int>(strtol(value.c_str(), nullptr, 10));
    else if (name == "--bound")
      settings.bound = value != "no";
    else if (name == "--meet")
      settings.meet = value;
    else if (name == "--transport")
      settings.transport = value;
    else if (name == "--variant")
      settings.variant = value;
    else if (name == "--network")
      settings.network = value;
    else if (name == "--expect")
      settings.expect = value;
    else
      fail("unknown argument '" + name + "'");
  }
  if (settings.n_ranks < 1 || settings.n_ranks > kMaxRanks) fail("--ranks: from 1 to " + std::to_string(kMaxRanks));
  if (settings.seconds <= 0) fail("--seconds: must be more than 0");
  if (settings.row < 0 || settings.warm_up < 1) fail("--row: must not be negative; --warm-up: must be at least 1");
  if (settings.meet.empty() || settings.sizes_bytes.empty()) fail("--meet FILE and --sizes BYTES,... are needed");
  return settings;
}

void Library::all_reduce(const float*, float*, size_t) {
  unsupported("all_reduce");
}
void Library::broadcast(float*, size_t) {
  unsupported("broadcast");
}
void Library::all_gather(const float*, float*, size_t) {
  unsupported("all_gather");
}
void Library::reduce_scatter(const float*, float*, size_t) {
  unsupported("reduce_scatter");
}
void Library::reduce(const float*, float*, size_t) {
  unsupported("reduce");
}
void Library::all_to_all(const float*, float*, size_t) {
  unsupported("all_to_all");
}
void Library::copy(const float*, float*, size_t) {
  unsupported("copy");
}
void Library::round_trip(const float*, float*, size_t) {
  unsupported("round_trip");
}

float* Library::allocate(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail(std::string("mmap: ") + strerror(errno));
  return static_cast<float*>(memory);
}

void measure(Library& library, Meet& meet, const Settings& settings) {
  if (settings.bound && library.works_on_caller()) pin_to_core(meet.rank(), meet.n_ranks());
  const size_t largest = *std::max_element(settings.sizes_bytes.begin(), settings.sizes_bytes.end());
  float* in = library.allocate(largest);
  float* out = library.allocate(largest);
  // Touched before the timing: all pages that were never written are the same page of zeros.
  memset(in, 1, largest);
  memset(out, 1, largest);
  for (const size_t bytes : settings.sizes_bytes) {
    const Shape shape = shape_of(settings.op, meet.rank(), meet.n_ranks(), bytes);
    const bool in_blocks =
        settings.op == Op::kAllGather || settings.op == Op::kReduceScatter || settings.op == Op::kAllToAll;
    if (in_blocks && shape.block() * static_cast<size_t>(meet.n_ranks()) != shape.elems) {
      fail("--sizes: " + std::to_string(bytes) + " bytes make no equal blocks of floats");
    }
    Measurement measurement(library, meet, shape, in, out);
    measure_size(measurement, meet, settings, bytes);
    fflush(stdout);
  }
  library.barrier();
}

void enter_host(const Settings& settings, int rank) {
  if (settings.network.empty()) return;
  const std::string path = "/run/netns/" + settings.network + "-" + std::to_string(rank + 1);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) fail("--network: " + path + ": " + strerror(errno));
  close(fd);
}

int run_forked(const Settings& settings, const std::function<void(int rank)>& body) {
  std::vector<pid_t> ranks;
  const pid_t parent = getpid();
  for (int rank = 0; rank < settings.n_ranks; rank++) {
    const pid_t pid = fork();
    if (pid < 0) fail(std::string("fork: ") + strerror(errno));
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      enter_host(settings, rank);
      body(rank);
      fflush(stdout);
      _exit(0);
    }
    ranks.push_back(pid);
  }
  int result = 0, status = 0;
  while (!ranks.empty()) {
    ranks.erase(std::find(ranks.begin(), ranks.end(), wait(&status)));
    if (status != 0 && result == 0) {
      result = exit_status_of(status);
      for (const pid_t other : ranks) kill(other, SIGKILL);
    }
  }
  return result;
}

}  // namespace bench
