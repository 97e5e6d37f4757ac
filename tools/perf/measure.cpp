#include "measure.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <thread>

#include "device.h"
#include "types.h"

namespace tutti::perf {
namespace {

// Tensors begin at an allocator's alignment.
constexpr size_t kPieceAlignment = 64;
// Reading the clock does not noticeably slow down an operation this long.
constexpr double kSlowSeconds = 1e-4;
// The minimum time for which a row's operations run before they are timed.
constexpr double kSettleSeconds = 2e-3;
// This many operations follow the barrier before the timed ones, if they are quick.
constexpr int kAfterBarrier = 5;
// How much later the last rank comes to a barrier that is checked.
constexpr auto kLate = std::chrono::milliseconds(3);

double thread_cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Equal on two ranks if and only if they run on the same machine since the same boot.
double machine_number() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return static_cast<double>(std::hash<std::string>()(boot + host) >> 12);  // 52 bits: exact
}

// Element-wise maximum.
void raise(const std::vector<double>& others, std::vector<double>* values) {
  for (size_t i = 0; i < others.size(); i++) (*values)[i] = std::max((*values)[i], others[i]);
}

size_t most_elems(const Collective& collective, size_t total, size_t n_ranks) {
  size_t most = 0;
  for (size_t rank = 0; rank < n_ranks; rank++) {
    const Layout layout = collective.layout(total, n_ranks, rank);
    most = std::max({most, layout.send, layout.recv});
  }
  return most;
}

// Elements [begin, end) of a piece.
struct Range {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// Calls f for the parts of `whole` before and behind `hole`.
template <class Function>
void around(Range whole, Range hole, Function f) {
  const Range before = {whole.begin, std::min(whole.end, hole.begin)};
  const Range behind = {std::max(whole.begin, hole.end), whole.end};
  if (before.begin < before.end) f(before);
  if (behind.begin < behind.end) f(behind);
}

}  // namespace

Work make_work(const Collective& collective, tuttiDataType_t type, const std::vector<size_t>& totals, int n_ranks,
               int rank) {
  const size_t elem_bytes = type_info(type).bytes;
  Work work;
  work.type = type;
  size_t first = 0;
  for (const size_t total : totals) {
    const Layout layout = collective.layout(total, static_cast<size_t>(n_ranks), static_cast<size_t>(rank));
    const size_t elems = most_elems(collective, total, static_cast<size_t>(n_ranks));
    const size_t bytes = elems * elem_bytes;
    const size_t offset = (work.extent_bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
    work.pieces.push_back({offset, elems, first, layout});
    work.count += layout.count;
    work.bytes += bytes;
    work.extent_bytes = offset + bytes;
    first += total;
  }
  return work;
}

Bench::Bench(const Options& options, const Collective& collective, Team& team)
    : options_(options), collective_(collective), team_(team), progress_(team.rank() == 0) {}

Bench::~Bench() {
  // The communicator's destruction deregisters it anyway, so a failure changes nothing.
  for (void* registration : registrations_) static_cast<void>(tuttiCommDeregister(team_.comm(), registration));
  // An error of the stream was already returned by the wait for it.
  if (stream_ != nullptr && on_device()) device::destroy(stream_);
  if (stream_ != nullptr && !on_device()) static_cast<void>(tuttiStreamDestroy(stream_));
}

Status Bench::allocate(size_t extent_bytes) {
  size_t largest_elem = 0;
  for (const tuttiDataType_t type : options_.types) largest_elem = std::max(largest_elem, type_info(type).bytes);
  const size_t bytes = extent_bytes + options_.unalign_elems * largest_elem;
  const Memory memory = on_device() ? Memory::kDevice : options_.registration > 0 ? Memory::kTutti : Memory::kHost;
  if (Status s = send_.allocate(bytes, memory); !s) return s;
  if (Status s = recv_.allocate(bytes, memory); !s) return s;
  if (options_.registration > 0) {
    if (Status s = register_buffer(send_); !s) return s;
    if (Status s = register_buffer(recv_); !s) return s;
  }
  if (options_.null_stream) return {};
  if (on_device()) return device::create_stream(&stream_);
  const tuttiResult_t result = tuttiStreamCreate(&stream_);
  if (result != tuttiSuccess) return library_error("tuttiStreamCreate", result, nullptr);
  return {};
}

Status Bench::register_buffer(const Buffer& buffer) {
  void* registration = nullptr;
  const tuttiResult_t result = tuttiCommRegister(team_.comm(), buffer.memory(), buffer.memory_bytes(), &registration);
  if (result != tuttiSuccess) return library_error("tuttiCommRegister", result, team_.comm());
  registrations_.push_back(registration);
  return {};
}

std::vector<Call> Bench::calls(const Work& work, tuttiRedOp_t op, bool in_place, char* send_base,
                               char* recv_base) const {
  const size_t elem_bytes = type_info(work.type).bytes;
  std::vector<Call> calls;
  for (const Piece& piece : work.pieces) {
    char* recv = recv_base + piece.offset_bytes;
    const char* send = send_base + piece.offset_bytes;
    if (in_place) {
      send = recv + piece.layout.in_place_send_offset * elem_bytes;
      recv += piece.layout.in_place_recv_offset * elem_bytes;
    }
    calls.push_back({send, recv, piece.layout.count, work.type, op, work.root, team_.rank(), team_.n_ranks(),
                     team_.comm(), stream_, options_.wire});
  }
  return calls;
}

// Several times form one group, as in nccl-tests.
Status Bench::start(const std::vector<Call>& calls, int times) const {
  tuttiResult_t result = times > 1 ? tuttiGroupStart() : tuttiSuccess;
  for (int i = 0; i < times; i++) {
    for (const Call& call : calls) {
      if (result == tuttiSuccess) result = collective_.run(call);
    }
  }
  if (times > 1) {
    const tuttiResult_t end = tuttiGroupEnd();  // even after a failure: a group that was begun must end
    if (result == tuttiSuccess) result = end;
  }
  if (result != tuttiSuccess) return library_error(collective_.call, result, team_.comm());
  return {};
}

Status Bench::wait() const {
  if (on_device()) return device::synchronize(stream_);
  if (stream_ == nullptr) return {};
  const tuttiResult_t result = tuttiStreamSynchronize(stream_);
  if (result != tuttiSuccess) return library_error("tuttiStreamSynchronize", result, team_.comm());
  return {};
}

Status Bench::create_operator(const Work& work, tuttiRedOp_t* op) const {
  *op = work.op;
  if (work.op != kMulSum) return {};
  alignas(8) char scalar[8] = {};
  fill_scalar({work.type, kMulSum, team_.n_ranks(), 0}, team_.rank(), scalar);
  const tuttiResult_t result = tuttiRedOpCreatePreMulSum(op, scalar, work.type, tuttiScalarHostImmediate, team_.comm());
  if (result != tuttiSuccess) return library_error("tuttiRedOpCreatePreMulSum", result, team_.comm());
  return {};
}

Status Bench::destroy_operator(const Work& work, tuttiRedOp_t op) const {
  if (work.op != kMulSum) return {};
  const tuttiResult_t result = tuttiRedOpDestroy(op, team_.comm());
  if (result != tuttiSuccess) return library_error("tuttiRedOpDestroy", result, team_.comm());
  return {};
}

Status Bench::measure(const Work& work, bool in_place, Measurement* result) {
  send_.move(options_.unalign_elems * type_info(work.type).bytes);
  recv_.move(options_.unalign_elems * type_info(work.type).bytes);
  doing_ = text("%zu bytes %s %s, ", work.bytes, type_info(work.type).name, in_place ? "in place" : "out of place");
  // Zeros, because repeated in-place sums or products of other data soon produce infinities or subnormals.
  if (Status s = send_.clear(work.extent_bytes); !s) return s;
  if (Status s = recv_.clear(work.extent_bytes); !s) return s;
  // But zero blocks are quantised faster than others.
  if (collective_.quantises) {
    fill(work, in_place, {work.type, work.op, team_.n_ranks(), seed_});
    if (Status s = send_.upload(work.extent_bytes); !s) return s;
  }
  tuttiRedOp_t op;
  if (Status s = create_operator(work, &op); !s) return s;
  if (Status s = time_and_check(work, op, in_place, result); !s) return s;  // the communicator frees its operators
  return destroy_operator(work, op);
}

Status Bench::time_and_check(const Work& work, tuttiRedOp_t op, bool in_place, Measurement* result) {
  const std::vector<Call> all = calls(work, op, in_place, send_.operand(), recv_.operand());
  if (Status s = team_.barrier(); !s) return s;
  if (options_.first && !in_place) {
    if (Status s = time_first(all, &result->first_seconds); !s) return s;
  }
  if (Status s = warm_up(all); !s) return s;
  if (Status s = settle(all); !s) return s;
  if (Status s = team_.barrier(); !s) return s;
  for (int i = 0; quick_ && i < kAfterBarrier; i++) {
    if (Status s = start(all); !s) return s;
  }
  if (Status s = wait(); !s) return s;
  if (Status s = options_.graph_launches > 0 ? replay(all, result) : iterate(all, result); !s) return s;
  if (Status s = average(&result->seconds, &result->cpu_seconds); !s) return s;
  if (result->seconds > 0) {
    result->alg_bw = static_cast<double>(work.bytes) / result->seconds / 1e9;
    result->bus_bw = result->alg_bw * collective_.bus_factor(team_.n_ranks());
  }
  if (!options_.per_iter_timing) return check(work, all, in_place, &result->wrong);
  if (Status s = team_.gather(result->iter_seconds, &result->rank_iter_seconds); !s) return s;
  for (const std::vector<double>& seconds : result->rank_iter_seconds) raise(seconds, &result->iter_seconds);
  return check(work, all, in_place, &result->wrong);
}

Status Bench::time_first(const std::vector<Call>& calls, double* seconds) {
  const double begin = now_seconds();
  if (Status s = start(calls); !s) return s;
  if (Status s = wait(); !s) return s;
  std::vector<double> slowest(1, now_seconds() - begin);
  Status s = team_.reduce(&slowest, tuttiMax);
  *seconds = slowest[0];
  return s;
}

Status Bench::warm_up(const std::vector<Call>& calls) {
  const double begin = now_seconds();
  for (int i = 0; i < options_.warmup_iters; i++) {
    if (slow_ && progress_.due()) progress_.show(doing_ + text("warm-up %d of %d", i + 1, options_.warmup_iters));
    if (Status s = start(calls); !s) return s;
    slow_ = now_seconds() - begin > kSlowSeconds * (i + 1);
  }
  return wait();
}

// Runs operations until they are as fast as they get: otherwise cold caches, links that are made at first use and
// sleeping CPUs would affect the first row's times. Ranks agree on the time, so all run the same number.
Status Bench::settle(const std::vector<Call>& calls) {
  quick_ = false;
  if (options_.warmup_iters == 0) return {};  // the user wants to see the start
  const double begin = now_seconds();
  int done = 0;
  std::vector<double> slowest(1, 0);
  for (int times = 1; slowest[0] < kSettleSeconds; times *= 2) {
    for (int i = 0; i < times; i++) {
      if (Status s = start(calls); !s) return s;
    }
    if (Status s = wait(); !s) return s;
    done += times;
    slowest[0] = now_seconds() - begin;
    if (Status s = team_.reduce(&slowest, tuttiMax); !s) return s;
  }
  quick_ = slowest[0] / done < kSlowSeconds;
  return {};
}

// The operations of one iteration. Adds time that must not count to *excluded_seconds.
Status Bench::iteration(const std::vector<Call>& calls, double* excluded_seconds) const {
  if (options_.blocking == 1 || options_.blocking == 2) return one_by_one(calls);
  if (Status s = start(calls, options_.agg_iters); !s) return s;
  if (options_.blocking == 0) return {};
  if (Status s = wait(); !s) return s;
  const double begin = now_seconds();
  Status s = team_.barrier();
  *excluded_seconds += now_seconds() - begin;
  return s;
}

Status Bench::one_by_one(const std::vector<Call>& calls) const {
  for (int i = 0; i < options_.agg_iters; i++) {
    if (Status s = start(calls); !s) return s;
    if (Status s = wait(); !s) return s;
    if (options_.blocking == 2) continue;
    if (Status s = team_.barrier(); !s) return s;
  }
  return {};
}

Status Bench::iterate(const std::vector<Call>& calls, Measurement* result) {
  const double operations = static_cast<double>(options_.iters) * options_.agg_iters;
  double excluded = 0;
  const double cpu_begin = thread_cpu_seconds();
  const double begin = now_seconds();
  for (int i = 0; i < options_.iters; i++) {
    const double iteration_begin = options_.per_iter_timing ? now_seconds() : 0;
    const double excluded_before = excluded;
    if (slow_ && progress_.due()) progress_.show(doing_ + text("iteration %d of %d", i + 1, options_.iters));
    if (Status s = iteration(calls, &excluded); !s) return s;
    if (!options_.per_iter_timing) continue;
    if (Status s = wait(); !s) return s;
    const double seconds = now_seconds() - iteration_begin - (excluded - excluded_before);
    result->iter_seconds.push_back(seconds / options_.agg_iters);
  }
  if (Status s = wait(); !s) return s;
  result->seconds = (now_seconds() - begin - excluded) / operations;
  result->cpu_seconds = (thread_cpu_seconds() - cpu_begin) / operations;
  return {};
}

Status Bench::capture(const std::vector<Call>& calls, int iters, int times, device::Graph* graph) const {
  Status s = graph->begin(stream_);
  for (int i = 0; s && i < iters; i++) s = start(calls, times);
  return s ? graph->end() : s;
}

// In the way that was timed: from a graph, or not.
Status Bench::run_once(const std::vector<Call>& calls) const {
  if (options_.graph_launches == 0) return start(calls);
  device::Graph graph;
  if (Status s = capture(calls, 1, 1, &graph); !s) return s;
  if (Status s = graph.launch(); !s) return s;
  return wait();
}

// As in nccl-tests: all iterations are one graph, and its launches are timed.
Status Bench::replay(const std::vector<Call>& calls, Measurement* result) {
  device::Graph graph;
  if (Status s = team_.agree(capture(calls, options_.iters, options_.agg_iters, &graph)); !s) return s;
  const double operations = static_cast<double>(options_.iters) * options_.agg_iters * options_.graph_launches;
  const double cpu_begin = thread_cpu_seconds();
  const double begin = now_seconds();
  for (int i = 0; i < options_.graph_launches; i++) {
    if (slow_ && progress_.due()) progress_.show(doing_ + text("launch %d of %d", i + 1, options_.graph_launches));
    if (Status s = graph.launch(); !s) return s;
  }
  if (Status s = wait(); !s) return s;
  result->seconds = (now_seconds() - begin) / operations;
  result->cpu_seconds = (thread_cpu_seconds() - cpu_begin) / operations;
  return {};
}

Status Bench::average(double* seconds, double* cpu_seconds) {
  if (options_.average == 0) return {};  // rank 0's own time is printed
  constexpr tuttiRedOp_t kOps[] = {tuttiSum, tuttiAvg, tuttiMin, tuttiMax};
  std::vector<double> both = {*seconds, *cpu_seconds};
  Status s = team_.reduce(&both, kOps[options_.average]);
  *seconds = both[0];
  *cpu_seconds = both[1];
  return s;
}

Status Bench::check(const Work& work, const std::vector<Call>& calls, bool in_place, long long* wrong) {
  for (int i = 0; i < options_.check_iters; i++) {
    if (progress_.due()) progress_.show(doing_ + text("check %d of %d", i + 1, options_.check_iters));
    seed_++;
    Status s = collective_.has_data ? check_data(work, calls, in_place, wrong) : check_order(calls, wrong);
    if (!s) return s;
    if (*wrong > 0) complain(work, in_place, *wrong);
    if (Status t = team_.sum(wrong); !t) return t;
    if (*wrong > 0) break;
  }
  return {};
}

Status Bench::check_data(const Work& work, const std::vector<Call>& calls, bool in_place, long long* wrong) {
  const DataKey key = {work.type, collective_.has_op ? work.op : kCopy, team_.n_ranks(), seed_};
  fill(work, in_place, key);
  for (const Buffer* buffer : {&send_, &recv_}) {
    if (Status s = buffer->upload(work.extent_bytes); !s) return s;
  }
  if (Status s = run_once(calls); !s) return s;
  if (Status s = wait(); !s) return s;
  for (const Buffer* buffer : {&send_, &recv_}) {
    if (Status s = buffer->download(work.extent_bytes); !s) return s;
  }
  *wrong = static_cast<long long>(count_wrong(work, in_place, key));
  return {};
}

// Without data the order is checked: no rank leaves before the last one, which is late on purpose, has come. Clocks of
// different machines cannot tell: then *wrong is negative on all ranks.
Status Bench::check_order(const std::vector<Call>& calls, long long* wrong) {
  if (team_.rank() == static_cast<int>(seed_ % static_cast<uint64_t>(team_.n_ranks()))) {
    std::this_thread::sleep_for(kLate);
  }
  const double machine = machine_number(), came = now_seconds();
  if (Status s = run_once(calls); !s) return s;
  if (Status s = wait(); !s) return s;
  const double left = now_seconds();
  std::vector<double> latest = {came, machine, -machine};
  if (Status s = team_.reduce(&latest, tuttiMax); !s) return s;
  const bool one_machine = latest[1] == -latest[2];
  *wrong = one_machine ? left < latest[0] : -1;  // overwrites the sum over the ranks
  return {};
}

void Bench::fill(const Work& work, bool in_place, const DataKey& key) {
  recv_.poison(work.extent_bytes);
  for (const Piece& piece : work.pieces) {
    const size_t shift_bytes = piece.layout.in_place_send_offset * type_info(work.type).bytes;
    char* input = in_place ? recv_.data() + piece.offset_bytes + shift_bytes : send_.data() + piece.offset_bytes;
    fill_input(key, team_.rank(), piece.first, piece.layout.send, input);
  }
}

size_t Bench::count_wrong(const Work& work, bool in_place, const DataKey& key) const {
  const std::vector<Call> seen = calls(work, work.op, in_place, send_.data(), recv_.data());
  const bool receives = !collective_.only_root_receives || team_.rank() == work.root;
  size_t wrong = recv_.count_overwritten(work.extent_bytes);
  for (size_t i = 0; i < seen.size(); i++) {
    const Piece& piece = work.pieces[i];
    if (receives) {
      wrong += collective_.count_wrong({key, team_.rank(), work.root, piece.first, seen[i].count,
                                        type_info(key.type).bytes, seen[i].recv, options_.wire});
    }
    wrong += count_spoiled(piece, in_place, receives, key);
  }
  return wrong;
}

// Counts changes outside the output: in the input, except where the output replaces it, and in memory that is neither.
size_t Bench::count_spoiled(const Piece& piece, bool in_place, bool receives, const DataKey& key) const {
  const Layout& layout = piece.layout;
  const size_t elem_bytes = type_info(key.type).bytes;
  const size_t send_at = in_place ? layout.in_place_send_offset : 0,
               recv_at = in_place ? layout.in_place_recv_offset : 0;
  const Range input = {send_at, send_at + layout.send};
  const Range output = {recv_at, recv_at + (receives ? layout.recv : 0)};
  const char* input_buffer = (in_place ? recv_ : send_).data() + piece.offset_bytes;
  size_t wrong = 0;
  around(input, in_place ? output : Range{0, 0}, [&](Range part) {
    wrong += count_wrong_copy(key, team_.rank(), piece.first + part.begin - input.begin, part.size(),
                              input_buffer + part.begin * elem_bytes);
  });
  const Range used = in_place && input.size() > output.size() ? input : output;
  around({0, piece.elems}, used, [&](Range part) {
    wrong +=
        recv_.count_changed(piece.offset_bytes + part.begin * elem_bytes, piece.offset_bytes + part.end * elem_bytes);
  });
  return wrong;
}

void Bench::complain(const Work& work, bool in_place, long long wrong) const {
  if (!collective_.has_data) {
    fprintf(stderr, "[rank %d] %s returned before the last rank had called it\n", team_.rank(), collective_.call);
    return;
  }
  fprintf(stderr, "[rank %d] %lld wrong: %zu bytes %s %s root %d, %s\n", team_.rank(), wrong, work.bytes,
          type_info(work.type).name, collective_.has_op ? kOpNames[static_cast<size_t>(work.op)] : "none", work.root,
          in_place ? "in place" : "out of place");
}

}  // namespace tutti::perf
