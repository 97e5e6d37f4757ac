#include "api/group.h"

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <utility>

#include "api/checks.h"
#include "base/log.h"
#include "base/thread.h"

namespace tutti::api {
namespace {

struct Pending {
  tuttiComm_t handle;
  Use use;
  Operation operation;
  tuttiStream_t stream;
  uint64_t ticket = 0;
};

// An operation about to be queued on a stream, with all memory that this takes.
struct Departure {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Pending> pending;
  std::list<Stream::Item> item;
};

struct Blocking {
  tuttiComm_t handle;
  std::function<Result<void>()> work;
};

struct Group {
  std::vector<Pending> operations;
  std::vector<Blocking> blocking;  // creations and finalizations
  std::optional<Error> in_background, spoiled;
};
// exit() within a group destroys it before static objects, whose destructors may still destroy communicators.
Group& group_of_thread() {
  return own_of_thread<Group>();
}
constinit thread_local int t_group_depth = 0;

// Takes back what a thread that ends has left open: all others' calls would look for it for ever.
struct OpenGroups {
  ~OpenGroups() { g_open_groups.fetch_sub(std::exchange(t_group_depth, 0), std::memory_order_relaxed); }
};

// Fuses all messages of one communicator into one operation, at the place of the first and in its stream: so their
// order does not matter, and a rank may send and receive in another order than its peers. Their other streams get an
// operation without messages before it and one behind it: since operations keep their order, it waits for these
// streams, and they for it.
std::vector<Pending> fuse_messages(std::vector<Pending> operations) {
  struct Exchange {
    tuttiStream_t stream;
    std::vector<Message> messages = {};
    std::set<tuttiStream_t> others = {};
  };
  std::map<tuttiComm_t, Exchange> exchanges;
  for (const Pending& p : operations) {
    if (p.operation.collective != Collective::kSendRecv) continue;
    Exchange& exchange = exchanges.try_emplace(p.handle, Exchange{p.stream}).first->second;
    exchange.messages.insert(exchange.messages.end(), p.operation.messages->begin(), p.operation.messages->end());
    if (p.stream != exchange.stream) exchange.others.insert(p.stream);
  }
  std::vector<Pending> fused;
  for (Pending& p : operations) {
    if (p.operation.collective != Collective::kSendRecv) {
      fused.push_back(std::move(p));
      continue;
    }
    const auto exchange = exchanges.extract(p.handle);
    if (exchange.empty()) continue;  // it is in that of an earlier message
    const auto join_others = [&, handle = p.handle] {
      const Operation nothing{.collective = Collective::kSendRecv,
                              .messages = std::make_shared<std::vector<Message>>()};
      for (const tuttiStream_t stream : exchange.mapped().others)
        if (Use use(handle); use) fused.push_back({handle, std::move(use), nothing, stream});
    };
    p.operation.messages = std::make_shared<const std::vector<Message>>(std::move(exchange.mapped().messages));
    join_others();
    fused.push_back(std::move(p));
    join_others();
  }
  return fused;
}

// Returns the receives of messages to this rank that are where they are to go.
Result<std::vector<const Message*>> check_self_messages(const Pending& p) {
  std::vector<const Message*> sends, receives, in_place;
  for (const Message& m : *p.operation.messages)
    if (m.peer == p.use->rank()) (m.sends ? sends : receives).push_back(&m);
  if (sends.size() != receives.size())
    return Error{Code::kInvalidUsage,
                 format("rank %d sends %zu messages to itself and receives %zu: put both into one group", p.use->rank(),
                        sends.size(), receives.size())};
  for (size_t i = 0; i < sends.size(); i++)
    if (sends[i]->count != receives[i]->count || sends[i]->dtype != receives[i]->dtype)
      return Error{Code::kInvalidUsage,
                   format("rank %d sends itself %lu x %s and receives %lu x %s", p.use->rank(), sends[i]->count,
                          dtype_name(sends[i]->dtype), receives[i]->count, dtype_name(receives[i]->dtype))};
  for (size_t i = 0; i < sends.size(); i++)
    if (sends[i]->data == receives[i]->data) in_place.push_back(receives[i]);
  return in_place;
}

// Where a message is in memory.
struct MessagePlace {
  uintptr_t begin, end;
  bool is_written;
  const Message* of;

  std::string text() const {
    return format("%s(count=%lu, %s, peer=%d) at %p", of->sends ? "Send" : "Recv", of->count, dtype_name(of->dtype),
                  of->peer, of->data);
  }
};

MessagePlace place_of(const Message& m) {
  const auto begin = reinterpret_cast<uintptr_t>(m.data);
  return {begin, begin + m.count * dtype_bytes(m.dtype), !m.sends, &m};
}

// What an exchange receives must overlap none of its other messages: what arrives would depend on timing. Not on GPUs:
// NCCL's own tests do this there, and take any result.
Result<void> check_exchange(const Pending& p) {
  TUTTI_TRY_ASSIGN(const auto in_place, check_self_messages(p));
  if (p.use->device() != nullptr) return {};
  const std::vector<Message>& messages = *p.operation.messages;
  if (std::all_of(messages.begin(), messages.end(), [&](const Message& m) { return m.sends == messages[0].sends; }))
    return {};
  if (messages.size() == 2) {  // the usual case, without a list
    const MessagePlace a = place_of(messages[0]), b = place_of(messages[1]);
    if (a.end <= b.begin || b.end <= a.begin) return {};
  }
  std::vector<MessagePlace> places;
  for (const Message& m : messages)
    if (std::find(in_place.begin(), in_place.end(), &m) == in_place.end()) places.push_back(place_of(m));
  const auto [one, other] = find_overlap(places);
  if (one == nullptr) return {};
  return invalid_argument(one->text() + " and " + other->text() +
                          " overlap: a group that sends and receives must receive into separate memory");
}

Result<Departure> departure_of(Pending& p) {
  TUTTI_TRY_ASSIGN(auto stream, find_stream(p.stream));
  Departure d{std::move(stream), std::make_shared<Pending>(std::move(p)), {}};
  const auto work = [kept = d.pending] {  // the queue's copy keeps the communicator alive
    log_set_thread_rank(kept->use->rank());
    return contained([&] { return kept->use->run(kept->ticket, kept->operation); });
  };
  d.item.push_back({work, d.pending->handle});
  return d;
}

// All operations are submitted before any is waited for, because their ranks may all belong to this thread. Those
// beside a refused one are submitted, too: other ranks may wait for them.
Result<void> submit_to_devices(const std::vector<Pending>& operations, std::vector<cuda::Device*>* devices) {
  Result<void> first;
  for (const Pending& p : operations) {
    if (auto submitted = p.use->device()->submit(p.operation, p.stream); first) first = std::move(submitted);
    if (std::find(devices->begin(), devices->end(), p.use->device()) == devices->end())
      devices->push_back(p.use->device());
  }
  return first;
}

// Operations behind a failed one are run, too, and refused: others may wait for their tickets' turns. Who aborts this
// communicator does not wait for the group's other communicators.
Result<void> run_in_order(const std::vector<Pending*>& list) {
  Result<void> first;
  for (const Pending* p : list)
    if (auto result = contained([&] { return p->use->run(p->ticket, p->operation); }); first) first = std::move(result);
  for (Pending* p : list) p->use = Use(nullptr);
  return first;
}

struct Start {
  std::vector<Departure> departures;         // by operation; empty for those without a stream
  std::vector<std::vector<Pending*>> lists;  // for each communicator, its operations without a stream, in order
  std::map<tuttiComm_t, std::shared_ptr<std::atomic<bool>>> queued;  // of those with a stream: whether it was aborted
};

Result<Start> prepare(std::vector<Pending>& operations) {
  Start start;
  start.departures.resize(operations.size());
  std::map<tuttiComm_t, std::vector<Pending*>> here;
  for (size_t i = 0; i < operations.size(); i++) {
    if (operations[i].stream == nullptr) {
      here[operations[i].handle].push_back(&operations[i]);
      continue;
    }
    start.queued[operations[i].handle] = operations[i].use.member().aborted();
    TUTTI_TRY_ASSIGN(start.departures[i], departure_of(operations[i]));
  }
  for (auto& [handle, list] : here) start.lists.push_back(std::move(list));
  return start;
}

// Takes the tickets in the order of calls, with or without a stream, and only once nothing else can fail, because each
// ticket must be used. On a stream the ticket is taken with the queue locked, because other threads may enqueue there:
// an operation must not wait for the turn of another one that is behind it in the queue.
void take_tickets(std::vector<Pending>& operations, Start& start) {
  for (size_t i = 0; i < operations.size(); i++) {
    Departure& d = start.departures[i];
    if (d.stream == nullptr) {
      operations[i].ticket = operations[i].use->take_ticket();
      continue;
    }
    d.stream->enqueue(std::move(d.item), [&d] { return d.pending->ticket = d.pending->use->take_ticket(); });
    d.pending.reset();
  }
}

// Operations on host memory, of which there are some; once nothing else can fail, `begin`; and then `meanwhile`, if
// given, on this thread.
Result<void> run_here(std::vector<Pending> operations, const std::function<void()>& begin,
                      const std::function<Result<void>()>& meanwhile) {
  TUTTI_TRY_ASSIGN(Start start, prepare(operations));
  std::vector<std::function<Result<void>()>> all;
  for (const auto& list : start.lists) all.push_back([&list] { return run_in_order(list); });
  if (meanwhile) all.push_back(meanwhile);
  auto here = run_at_once(std::move(all), [&] {
    begin();
    take_tickets(operations, start);
  });
  // tuttiCommAbort waits for the queued operations, and has perhaps looked at the streams before they were there. Only
  // now, because they wait for the turns of those without a stream.
  for (const auto& [handle, is_aborted] : start.queued)
    if (*is_aborted) end_queued(handle);
  return here;
}

// Runs one communicator's operations in order, and several communicators' concurrently, because their ranks may all
// belong to this thread.
Result<void> start_all(std::vector<Pending> operations) {
  for (const Pending& p : operations)
    if (p.operation.collective == Collective::kSendRecv) TUTTI_TRY(check_exchange(p));
  const auto middle = std::stable_partition(operations.begin(), operations.end(),
                                            [](const Pending& p) { return p.use->device() == nullptr; });
  std::vector<Pending> here(std::move_iterator(operations.begin()), std::move_iterator(middle));
  operations.erase(operations.begin(), middle);
  std::vector<cuda::Device*> devices;
  Result<void> submitted;
  const auto submit = [&] { submitted = contained([&] { return submit_to_devices(operations, &devices); }); };
  if (operations.empty()) return run_here(std::move(here), submit, nullptr);
  bool has_settled = false;
  const auto settle = [&]() -> Result<void> {
    if (std::exchange(has_settled, true)) return {};
    return cuda::Device::settle(devices);
  };
  Result<void> done;
  if (here.empty())
    submit();
  else
    done = contained([&] { return run_here(std::move(here), submit, settle); });
  if (auto settled = settle(); done) done = std::move(settled);  // if it has not run meanwhile
  return submitted ? std::move(done) : std::move(submitted);
}

// The collected calls, at the outermost end; otherwise nothing.
Result<std::optional<Group>> take_group(const char* function) {
  if (t_group_depth == 0) return Error{Code::kInvalidUsage, std::string(function) + " without tuttiGroupStart"};
  g_open_groups.fetch_sub(1, std::memory_order_relaxed);
  if (--t_group_depth > 0) return std::optional<Group>();
  std::optional<Group> group(std::exchange(group_of_thread(), Group()));
  if (!group->spoiled) return group;
  return Error{group->spoiled->code,
               "no call of this group was run, because one of them failed: " + group->spoiled->message,
               group->spoiled->culprit_rank};
}

// Fails if the process was forked between the group's start and its end.
Result<void> check_owned(const Group& group) {
  for (const Pending& p : group.operations)
    if (p.handle->magic == tuttiComm::kOfParent) return is_of_parent("comm", p.handle);
  for (const Blocking& b : group.blocking)
    if (b.handle != nullptr && b.handle->magic == tuttiComm::kOfParent) return is_of_parent("comm", b.handle);
  return {};
}

// Creations from one communicator, and its finalization, take their turns there in the order of calls, as on the other
// ranks, and so form one line of work. All others run concurrently.
std::vector<std::function<Result<void>()>> in_lines(std::vector<Blocking> blocking) {
  using Works = std::vector<std::function<Result<void>()>>;
  Works lines;
  std::map<tuttiComm_t, Works> of_comms;
  for (Blocking& b : blocking) (b.handle == nullptr ? lines : of_comms[b.handle]).push_back(std::move(b.work));
  for (auto& [handle, works] : of_comms)
    lines.push_back([line = std::move(works)]() mutable {
      Result<void> first;
      for (const auto& work : line)
        if (auto result = contained(work); first) first = std::move(result);
      line.clear();  // as in run_in_order()
      return first;
    });
  return lines;
}

Result<void> end_group() {
  TUTTI_TRY_ASSIGN(std::optional<Group> taken, take_group("tuttiGroupEnd"));
  if (!taken) return {};
  Group& group = *taken;
  TUTTI_TRY(check_owned(group));
  auto made = run_at_once(in_lines(std::move(group.blocking)));
  // Even after an error: other ranks may be in these operations, on communicators that work.
  auto done = start_all(fuse_messages(std::move(group.operations)));
  TUTTI_TRY(std::move(made));
  TUTTI_TRY(std::move(done));
  if (group.in_background) return *group.in_background;
  return {};
}

// Communicators run concurrently, the operations of each one after the other.
Result<void> simulate_group(tuttiSimInfo_t* info) {
  TUTTI_TRY_ASSIGN(std::optional<Group> group, take_group("tuttiGroupSimulateEnd"));
  if (info == nullptr) return invalid_argument("simInfo is NULL");
  if (info->magic != TUTTI_SIM_INFO_MAGIC || info->size < sizeof *info)
    return invalid_argument("simInfo was not initialised: start from TUTTI_SIM_INFO_INITIALIZER");
  if (!group) return {};
  TUTTI_TRY(check_owned(*group));
  if (!group->blocking.empty() || group->in_background)
    return Error{Code::kInvalidUsage,
                 "creating and finalizing communicators cannot be simulated: end this group with tuttiGroupEnd, and "
                 "simulate the operations in another group"};
  std::map<tuttiComm_t, double> sums_ns;
  for (const Pending& p : fuse_messages(std::move(group->operations)))
    sums_ns[p.handle] += p.use->estimate_ns(p.operation);
  double longest_ns = 0;
  for (const auto& [handle, ns] : sums_ns) longest_ns = std::max(longest_ns, ns);
  info->estimatedTime = static_cast<float>(longest_ns / 1e3);
  return {};
}

}  // namespace

std::atomic<int> g_open_groups = 0;

bool is_in_group() {
  return t_group_depth > 0;
}

void open_group() {
  (void)own_of_thread<OpenGroups>();
  g_open_groups.fetch_add(1, std::memory_order_relaxed);
  t_group_depth++;
}

Result<void> launch_later(tuttiComm_t handle, Use use, const Operation& operation, tuttiStream_t stream) {
  if (stream != nullptr && use->device() == nullptr) TUTTI_TRY(find_stream(stream));
  Pending call{handle, std::move(use), operation, stream};
  call.operation.created = call.use->monitor().recorder().now();
  if (t_group_depth > 0) {
    group_of_thread().operations.push_back(std::move(call));
    return {};
  }
  std::vector<Pending> one;
  one.push_back(std::move(call));
  return start_all(std::move(one));
}

Result<void> launch_blocking(tuttiComm_t handle, std::function<Result<void>()> work) {
  if (t_group_depth == 0) return work();
  group_of_thread().blocking.push_back({handle, std::move(work)});
  return {};
}

Error in_background(const char* what) {
  const Error error{Code::kInProgress, format("%s is still in progress: ask tuttiCommGetAsyncError", what)};
  if (t_group_depth > 0) group_of_thread().in_background = error;
  return error;
}

Result<void> run_at_once(std::vector<std::function<Result<void>()>> all, const std::function<void()>& begin) {
  std::vector<Result<void>> results(all.size());
  std::vector<std::thread> threads;
  threads.reserve(all.size());
  enum class Signal { kWait, kGo, kLeave };
  std::atomic<Signal> signal = Signal::kWait;
  const auto run = [&](size_t i) {
    signal.wait(Signal::kWait);
    if (signal == Signal::kGo) results[i] = contained(all[i]);
  };
  Result<void> started;
  while (threads.size() + 1 < all.size() && started) {
    auto thread = contained([&] { return start_thread("a thread", [&run, i = threads.size()] { run(i); }); });
    if (thread)
      threads.push_back(std::move(thread).value());
    else
      started = std::move(thread).error();
  }
  if (started && begin) begin();
  signal = started ? Signal::kGo : Signal::kLeave;
  signal.notify_all();
  if (!all.empty()) run(all.size() - 1);
  for (std::thread& thread : threads) thread.join();
  TUTTI_TRY(std::move(started));
  for (auto& result : results) TUTTI_TRY(std::move(result));
  return {};
}

void spoil_group(const Error& error) {
  if (t_group_depth > 0 && !group_of_thread().spoiled) group_of_thread().spoiled = error;
}

void drop_from_group(tuttiComm_t handle) {
  Group& group = group_of_thread();
  const size_t dropped = std::erase_if(group.operations, [&](const Pending& p) { return p.handle == handle; }) +
                         std::erase_if(group.blocking, [&](const Blocking& b) { return b.handle == handle; });
  if (dropped > 0)
    spoil_group({Code::kInvalidUsage,
                 format("comm=%p was destroyed after calls on it in this group", static_cast<void*>(handle))});
}

}  // namespace tutti::api

extern "C" {

tuttiResult_t tuttiGroupStart(void) {
  tutti::api::open_group();
  return tuttiSuccess;
}

tuttiResult_t tuttiGroupEnd(void) {
  return tutti::api::guarded([] { return tutti::api::end_group(); });
}

tuttiResult_t tuttiGroupSimulateEnd(tuttiSimInfo_t* simInfo) {
  return tutti::api::guarded([&] { return tutti::api::simulate_group(simInfo); });
}

}  // extern "C"
