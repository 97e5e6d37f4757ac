// Ranks that can never go on because they wait for each other, or for one that has left: all are told, with the calls.
// Ranks that can go on are left alone, however long they take.
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <random>

#include "base/clock.h"
#include "comm/comparison.h"
#include "comm/ranks.h"
#include "comm/standing.h"

using namespace tutti_test;

namespace {

using Body = std::function<tuttiResult_t(tuttiComm_t)>;

// More data than links hold, and more than the kernel buffers: sockets may grow to 36 MiB (tcp_rmem).
constexpr size_t kLarge = 8 << 20, kMost = 3 * kLarge;
// What one group receives lies apart: in 16 elements for each of up to four peers, and those of an AlltoAllv behind.
constexpr size_t kApart = 16 * 8;

// Untouched pages need no memory: writing so much took a fifth of the time of all these tests under
// ThreadSanitizer.
int* room(bool to_receive = false) {
  thread_local const std::unique_ptr<int, decltype(&free)> all(
      static_cast<int*>(calloc(2 * kMost + kApart, sizeof(int))), free);
  return all.get() + (to_receive ? kMost : 0);
}
Body sends(size_t count, int peer) {
  return [=](tuttiComm_t comm) { return tuttiSend(room(), count, tuttiInt32, peer, comm, nullptr); };
}
Body receives(size_t count, int peer) {
  return [=](tuttiComm_t comm) { return tuttiRecv(room(true) + 16 * peer, count, tuttiInt32, peer, comm, nullptr); };
}
Body sums(size_t count) {
  return [=](tuttiComm_t comm) {
    std::vector<int> in(count), out(count);
    return tuttiAllReduce(in.data(), out.data(), count, tuttiInt32, tuttiSum, comm, nullptr);
  };
}
Body broadcasts(size_t count, int root) {
  return [=](tuttiComm_t comm) { return tuttiBcast(room(), count, tuttiInt32, root, comm, nullptr); };
}
Body passes_to_all(size_t count, int n) {
  return [=](tuttiComm_t comm) {
    const std::vector<size_t> counts(static_cast<size_t>(n), count);
    std::vector<size_t> at;
    for (size_t r = 0; r < counts.size(); r++) at.push_back(r * count);
    return tuttiAlltoAllv(room(), counts.data(), at.data(), room(true) + 16 * 4, counts.data(), at.data(), tuttiInt32,
                          comm, nullptr);
  };
}
Body at_once(std::vector<Body> all) {
  return [=](tuttiComm_t comm) {
    tuttiGroupStart();
    for (const Body& body : all) body(comm);
    return tuttiGroupEnd();
  };
}
Body then(std::vector<Body> all) {
  return [=](tuttiComm_t comm) {
    for (const Body& body : all)
      if (const tuttiResult_t result = body(comm); result != tuttiSuccess) return result;
    return tuttiSuccess;
  };
}
Body sleeps(int ms) {
  return [=](tuttiComm_t) {
    usleep(static_cast<useconds_t>(ms) * 1000);
    return tuttiSuccess;
  };
}
tuttiResult_t stays_away(tuttiComm_t) {
  return tuttiSuccess;
}

tuttiConfig_t config_of(const char* transport) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  config.opTimeoutSeconds = 60;  // a hang ends with a different error
  return config;
}

// Each rank does its part, and finalizes if nothing failed.
std::vector<Outcome> run_parts(const char* transport, const std::vector<Body>& parts) {
  const tuttiConfig_t config = config_of(transport);
  return run_threads(static_cast<int>(parts.size()), &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    outcome.take(parts[static_cast<size_t>(rank)](comm));
    if (outcome.code == tuttiSuccess) outcome.take(tuttiCommFinalize(comm));
  });
}

void require_told(const std::vector<Outcome>& outcomes, const std::vector<std::string>& said) {
  for (size_t r = 0; r < outcomes.size(); r++) {
    INFO("rank " << r << ": " << outcomes[r].message);
    CHECK(outcomes[r].code == tuttiInvalidUsage);
    for (const std::string& part : said) CHECK(contains(outcomes[r].message, part));
  }
}

const char* any_transport() {
  return GENERATE("shm", "tcp");
}

std::vector<Body> others_call(int n, const Body& usual, int odd_rank, const Body& odd) {
  std::vector<Body> parts(static_cast<size_t>(n), usual);
  parts[static_cast<size_t>(odd_rank)] = odd;
  return parts;
}

}  // namespace

TEST_CASE("one rank waits for a message and the others call something else", "[waits]") {
  const char* const transport = any_transport();
  const int n = GENERATE(2, 3);
  const std::string recv = "rank 1 called Recv(count=4, int32, peer=0)";
  require_told(run_parts(transport, others_call(n, sums(12), 1, receives(4, 0))), {recv, " called AllReduce(count=12"});
  require_told(run_parts(transport, others_call(n, sums(1 << 20), 1, then({sums(1 << 20), receives(4, 0)}))),
               {recv, " called Finalize [tree] as operation 2"});
  require_told(run_parts(transport, others_call(n, broadcasts(3, 1), 1, receives(4, 0))),
               {recv, " called Broadcast(count=3, int32, root=1)"});
  require_told(run_parts(transport, others_call(n, passes_to_all(2, n), 1, tuttiCommFinalize)),
               {"rank 1 called Finalize [tree] as operation 1", "as one of "});
}

TEST_CASE("one rank waits to be rid of a message and the others call something else", "[waits]") {
  const char* const transport = any_transport();
  const int n = GENERATE(2, 3);
  const std::string send = "rank 1 called Send(count=25165824, int32, peer=0)";
  require_told(run_parts(transport, others_call(n, sums(12), 1, sends(kMost, 0))), {send, " called AllReduce("});
  // The send starts long before the others call.
  require_told(run_parts(transport, others_call(n, then({sleeps(900), sums(12)}), 1, sends(kMost, 0))),
               {send, " called AllReduce("});
  require_told(run_parts(transport, others_call(n, stays_away, 1, sends(kMost, 0))), {send, " called Finalize"});
  require_told(run_parts(transport, others_call(n, passes_to_all(1, n), 1, sums(5))),
               {"rank 1 called AllReduce(count=5", "as one of "});
}

TEST_CASE("an AlltoAllv in the place of another rank's collective is found before it takes older data") {
  const char* const transport = any_transport();
  const int n = GENERATE(2, 3), odd_rank = GENERATE(0, 1);
  const Body usual = passes_to_all(2, n), odd = broadcasts(4, odd_rank);  // which does not wait once there are links
  const auto part = [&](const Body& differs) { return then({usual, odd, odd, odd, differs, usual, usual}); };
  require_told(run_parts(transport, others_call(n, part(usual), odd_rank, part(odd))),
               {"rank " + std::to_string(odd_rank) + " called Broadcast(count=4, int32, root=",
                " as operation 4, rank ", " AlltoAllv; all ranks"});
}

TEST_CASE("an AlltoAllv meets messages that have no place between the collectives") {
  const char* const transport = any_transport();
  const Body apart = at_once({sends(2, 0), receives(2, 0), sends(2, 1), receives(2, 1)});
  const Body to_all = passes_to_all(2, 2), shared = broadcasts(4, 1);
  require_success(run_parts(transport, {then({shared, to_all, apart}), then({shared, apart, to_all})}));
  // In a group it runs with the first message, which on rank 0 is before the broadcast.
  require_success(run_parts(transport, {then({shared, shared, at_once({sends(1, 1), shared, to_all})}),
                                        then({shared, shared, at_once({shared, receives(1, 0), to_all})})}));
}

TEST_CASE("ranks that wait for each other's messages are told", "[waits]") {
  const char* const transport = any_transport();
  require_told(run_parts(transport, {receives(4, 1), receives(6, 0)}),
               {"rank 0 called Recv(count=4, int32, peer=1)", "rank 1 called Recv(count=6, int32, peer=0)"});
  require_told(
      run_parts(transport, {sends(kMost, 1), sends(kMost - 1, 0)}),
      {"rank 0 called Send(count=25165824, int32, peer=1)", "rank 1 called Send(count=25165823, int32, peer=0)"});
  require_told(run_parts(transport, {receives(1, 1), receives(2, 2), receives(3, 3), receives(4, 0)}),
               {"rank 3 called Recv(count=4, int32, peer=0)", "rank 1 called Recv(count=2, int32, peer=2)"});
  // All messages but the last are sent.
  require_told(
      run_parts(transport, {then({sends(1, 1), sends(2, 1)}), then({receives(1, 0), receives(2, 0), receives(3, 0)})}),
      {"rank 1 called Recv(count=3, int32, peer=0), message 3 from rank 0, which has begun only 2 matching Send"});
}

TEST_CASE("who waits for a message from a rank that has left is told") {
  const char* const transport = any_transport();
  const int n = GENERATE(2, 7);  // in the larger group not all ranks are connected
  const tuttiConfig_t config = config_of(transport);
  const int waits = n - 1, leaves = (n - 1) / 2;
  const auto outcomes = run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    outcome.take(sums(3)(comm));
    if (rank == leaves) return;
    if (rank == waits) outcome.take(receives(4, leaves)(comm));
    // The others do something else until they are told.
    for (tuttiResult_t state = tuttiSuccess; outcome.code == tuttiSuccess; usleep(1000)) {
      tuttiCommGetAsyncError(comm, &state);
      if (state != tuttiSuccess) outcome.code = state, outcome.message = tuttiGetLastError(comm);
    }
  });
  for (int rank = 0; rank < n; rank++) {
    if (rank == leaves) continue;
    const Outcome& outcome = outcomes[static_cast<size_t>(rank)];
    INFO("rank " << rank << ": " << outcome.message);
    CHECK(outcome.code == tuttiRemoteError);
    CHECK(contains(outcome.message,
                   "rank " + std::to_string(leaves) + " finalized or destroyed its communicator after 1 operations"));
    CHECK(contains(outcome.message, "rank " + std::to_string(waits) + " called Recv(count=4, int32, peer="));
    CHECK_FALSE(contains(outcome.message, "SendRecv("));  // a batch of messages is no call of the program's
  }
}

TEST_CASE("who sends to a rank that has finalized, and lives on, is told") {
  const char* const transport = any_transport();
  const tuttiConfig_t config = config_of(transport);
  const std::vector<Body> rows(4, broadcasts(kLarge, 1));  // together more than links and kernels buffer
  const std::vector<std::pair<Body, Body>> parts = {{stays_away, sends(1, 0)},  // for which no link is made any more
                                                    {receives(1, 1), then({sends(1, 0), sends(kMost, 0)})},
                                                    {broadcasts(kLarge, 1), then(rows)}};
  for (const auto& [leaves, waits] : parts) {
    std::atomic<bool> is_told = false;
    const auto outcomes = run_threads(2, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
      outcome.take(then({sums(3), rank == 0 ? leaves : waits})(comm));
      if (rank == 1) is_told = true;
      if (rank == 0) outcome.take(tuttiCommFinalizeLocal(comm));
      while (!is_told) usleep(1000);
    });
    INFO(transport << ": " << outcomes[1].message);
    CHECK(outcomes[1].code == tuttiRemoteError);
    CHECK(contains(outcomes[1].message, "rank 0 finalized or destroyed its communicator after "));
  }
}

TEST_CASE("ranks that are late are waited for", "[waits]") {
  const char* const transport = any_transport();
  require_success(run_parts(transport, {then({sleeps(1200), sends(4, 1)}), receives(4, 0)}));
  require_success(run_parts(transport, {then({sleeps(1200), receives(kLarge, 1)}), sends(kLarge, 0)}));
  // Each rank waits for the next one, the last for nobody.
  require_success(run_parts(transport, {then({receives(1, 1), sums(8)}), then({receives(1, 2), sends(1, 0), sums(8)}),
                                        then({sleeps(1000), sends(1, 1), sleeps(600), sums(8)})}));
  require_success(run_parts(transport, {then({sends(kLarge, 1), sums(8)}),
                                        then({sleeps(700), receives(kLarge, 0), sleeps(700), sums(8)}), sums(8)}));
}

// More messages than the recorder holds operations: rank 0's collectives are no longer in it. Rank 1 is in the
// second collective, which rank 0 has left and rank 2 joins late.
TEST_CASE("a rank that has passed very many messages since is known to have called its collectives", "[waits]") {
  const char* const transport = any_transport();
  const Body reduces = [](tuttiComm_t comm) {
    const int one = 1;
    int sum = 0;
    return tuttiReduce(&one, &sum, 1, tuttiInt32, tuttiSum, 1, comm, nullptr);
  };
  const Body passes_many = [](tuttiComm_t comm) {
    tuttiResult_t result = tuttiSuccess;
    for (int sent = 0, received = 0; sent < 1100 && result == tuttiSuccess; sent++) {
      tuttiGroupStart();
      tuttiSend(&sent, 1, tuttiInt32, 0, comm, nullptr);
      tuttiRecv(&received, 1, tuttiInt32, 0, comm, nullptr);
      result = tuttiGroupEnd();
    }
    return result;
  };
  require_success(
      run_parts(transport, {then({reduces, reduces, passes_many, receives(1, 1)}),
                            then({reduces, reduces, sends(1, 0)}), then({reduces, sleeps(2000), reduces})}));
}

TEST_CASE("messages that nobody has taken yet hold up nobody") {
  const char* const transport = any_transport();
  require_success(run_parts(transport, {then({sends(1, 1), sleeps(700), sums(8), sends(1, 1)}),
                                        then({sums(8), sleeps(700), receives(1, 0), receives(1, 0)})}));
}

namespace {

// Each rank does its part of one common list of operations, in that order, so the program can never stand still.
std::vector<Body> random_program(int n, int length, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  std::vector<std::vector<Body>> parts(static_cast<size_t>(n));
  const auto add = [&](int rank, Body body) { parts[static_cast<size_t>(rank)].push_back(std::move(body)); };
  for (int i = 0; i < length; i++) {
    if (below(3) == 0) add(below(n), sleeps(below(700)));
    const size_t count = below(3) == 0 ? kLarge : static_cast<size_t>(below(5000));
    if (below(5) == 0) {
      for (int rank = 0; rank < n; rank++)
        add(rank, at_once({sends(count, (rank + 1) % n), receives(count, (rank + n - 1) % n)}));
      continue;
    }
    if (below(2) == 0) {
      const int from = below(n), to = (from + 1 + below(n - 1)) % n;
      add(from, sends(count, to));
      add(to, receives(count, from));
      continue;
    }
    const int kind = below(4), root = below(n);
    for (int rank = 0; rank < n; rank++)
      add(rank, kind == 0   ? sums(count)
                : kind == 1 ? broadcasts(count, root)
                : kind == 2 ? passes_to_all(count % 1000, n)
                            : Body([](tuttiComm_t comm) { return tuttiBarrier(comm, nullptr); }));
  }
  std::vector<Body> bodies;
  for (auto& part : parts) bodies.push_back(then(std::move(part)));
  return bodies;
}

}  // namespace

TEST_CASE("no program that can go on is called an error") {
  const char* const transport = any_transport();
  const unsigned seed = GENERATE(1u, 2u);
  INFO("seed " << seed);
  require_success(run_parts(transport, random_program(4, kSanitized ? 6 : 12, seed)));
}

TEST_CASE("the same for long", "[.soak]") {
  const unsigned seed = GENERATE(range(100u, 160u));
  INFO("seed " << seed);
  require_success(run_parts(seed % 2 == 0 ? "shm" : "tcp", random_program(3 + static_cast<int>(seed % 3), 20, seed)));
}

namespace {

using namespace tutti;  // NOLINT: what follows is about the library's inside

Standing calls(int rank, uint64_t sequence, Collective collective = Collective::kAllReduce) {
  return {{rank, {.sequence = sequence, .count = 4, .collective = collective}}, Standing::Doing::kCalls};
}
Standing passes(int rank, uint64_t calls, std::vector<AwaitedMessage> awaited) {
  Standing passing{{rank, {.sequence = calls}}, Standing::Doing::kPasses};
  passing.awaited = std::move(awaited);
  return passing;
}
constexpr int64_t kSecondNs = 1'000'000'000;

}  // namespace

TEST_CASE("only what stays true however old it is makes ranks wait for each other") {
  const auto from = [](int peer, uint64_t number) {
    return AwaitedMessage{false, peer, {.sequence = number, .count = 1}};
  };
  const auto to = [](int peer, uint64_t number) {
    return AwaitedMessage{true, peer, {.sequence = number, .count = 1}};
  };
  const Standing waits = passes(1, 2, {from(0, 1)});
  CHECK(judge(calls(0, 3), {{1, waits}}).error);
  CHECK_FALSE(judge(calls(0, 2), {{1, waits}}).error);  // an operation that both have begun
  Standing has_sent = calls(0, 3);
  has_sent.counts = {{1, {1, 0}}};
  CHECK_FALSE(judge(has_sent, {{1, waits}}).error);  // the message is on its way
  Standing forgets = calls(0, 3);
  forgets.counts_all = false;
  CHECK_FALSE(judge(forgets, {{1, waits}}).error);  // the message may be on its way
  // A broadcast needs its root, and no rank about which nothing is known.
  CHECK_FALSE(judge(calls(0, 3, Collective::kBroadcast), {{1, waits}}).error);
  Standing hears_from_it = calls(2, 3, Collective::kBroadcast);
  hears_from_it.awaited = {from(1, 3)};
  CHECK(judge(hears_from_it, {{1, passes(1, 2, {from(2, 1)})}}).error);
  // A cycle of three, known completely or not.
  const Standing first = passes(0, 0, {from(1, 1)});
  CHECK(judge(first, {{1, passes(1, 0, {from(2, 4)})}, {2, passes(2, 0, {from(0, 1)})}}).error);
  CHECK_FALSE(judge(first, {{1, passes(1, 0, {from(2, 4)})}}).error);
  // A sender counts as waiting if it still waits long after the receiver last did anything.
  Standing sends = passes(1, 2, {to(0, 1)}), late = calls(0, 3);
  late.heard_ns = 10 * kSecondNs;
  late.idle_ns = kSecondNs;
  sends.heard_ns = 9 * kSecondNs;
  CHECK_FALSE(judge(late, {{1, sends}}).error);
  CHECK(judge(late, {{1, sends}}).seems);
  sends.heard_ns = 9 * kSecondNs + kSecondNs / 2;
  CHECK(judge(late, {{1, sends}}).error);
}

TEST_CASE("a call needs of another rank what it has to get from it") {
  const Standing waits = passes(1, 2, {{false, 0, {.sequence = 1, .count = 1}}});
  const auto needs = [&](Collective collective, int root, std::vector<uint64_t> blocks = {}, uint64_t count = 4) {
    Standing one = calls(0, 3, collective);
    one.call.root = root;
    one.call.count = count;
    one.call.blocks = blocks.empty() ? 0 : 1;
    one.blocks = std::move(blocks);
    return judge(one, {{1, waits}}).error.has_value();
  };
  for (const Collective gathers : {Collective::kReduce, Collective::kGather}) {
    CHECK(needs(gathers, 0));
    CHECK_FALSE(needs(gathers, 1));
    CHECK_FALSE(needs(gathers, 2));
  }
  for (const Collective spreads : {Collective::kBroadcast, Collective::kScatter}) {
    CHECK(needs(spreads, 1));
    CHECK_FALSE(needs(spreads, 0));
    CHECK_FALSE(needs(spreads, 2));
  }
  CHECK(needs(Collective::kAllGather, 0, {0, 4}));
  CHECK_FALSE(needs(Collective::kAllGather, 0, {4, 0}));
  CHECK(needs(Collective::kReduceScatter, 0, {4, 0}));
  CHECK_FALSE(needs(Collective::kReduceScatter, 0, {0, 4}));
  for (const Collective all : {Collective::kAllReduce, Collective::kAllToAll, Collective::kAllReduceQuantized}) {
    CHECK(needs(all, 0));
    CHECK_FALSE(needs(all, 0, {}, 0));
  }
  CHECK(needs(Collective::kBarrier, 0, {}, 0));
}

TEST_CASE("what goes from neighbour to neighbour is passed on once, and not by who has said it") {
  Recorder mine, theirs;
  for (Recorder* recorder : {&mine, &theirs}) recorder->begin(calls(0, 3).call);
  Comparison one(0, 3, mine), other(1, 3, theirs);
  const auto passes_on = [](Comparison& who, const std::string& bytes) {
    const auto answer = who.hear(bytes);
    REQUIRE(answer);
    CHECK_FALSE(answer->error);
    return answer->passes_on;
  };
  Standing waits = passes(0, 0, {{false, 2, {.sequence = 1, .count = 1}}});
  waits.begun = 1;
  waits.idle_ns = kSecondNs;
  const auto word = one.look(waits);
  REQUIRE(word);
  CHECK(passes_on(other, word.value()));
  CHECK_FALSE(passes_on(other, word.value()));
  CHECK_FALSE(passes_on(one, word.value()));
  const std::string question = one.question(3);
  REQUIRE_FALSE(question.empty());
  CHECK(passes_on(other, question));
  CHECK_FALSE(passes_on(other, question));
  CHECK(other.question(3).empty());  // every rank has heard an answer
}

TEST_CASE("a statement that does not fit leaves out what nobody misses, and bytes that make no sense are none") {
  Standing mine = passes(3, 7, {{true, 2, {.sequence = 9, .count = 10, .dtype = DataType::kInt32}}});
  mine.call.collective = Collective::kBarrier;
  for (int peer = 0; peer < 500; peer++) mine.counts[peer] = {5, 6};
  for (const size_t room : {size_t{200}, size_t{1000}, size_t{100000}}) {
    ByteWriter writer;
    mine.put(writer, room);
    const std::string bytes = writer.take();
    CHECK(bytes.size() <= room);
    ByteReader reader(bytes);
    const auto read = Standing::get(reader, 500);
    REQUIRE(read);
    CHECK(reader.at_end());
    CHECK(read->counts_all == (room > 20000));
    CHECK(read->awaited.at(0).call.sequence == 9);
    CHECK(read->call == mine.call);
    for (size_t n = 0; n < bytes.size(); n++) {
      ByteReader cut(std::string_view(bytes).substr(0, n));
      CHECK_FALSE(Standing::get(cut, 500));
    }
    ByteReader strangers(bytes);
    CHECK_FALSE(Standing::get(strangers, 2));  // it has the counts of a rank that does not exist
  }
  mine.counts.clear();
  ByteWriter writer;
  mine.put(writer, 1000);
  const std::string bytes = writer.take();
  ByteReader strangers(bytes), ranks(bytes);
  CHECK_FALSE(Standing::get(strangers, 2));  // it waits for such a rank
  CHECK(Standing::get(ranks, 3));
}
