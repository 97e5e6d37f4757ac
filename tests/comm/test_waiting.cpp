// A rank that waits leaves the CPU to others.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "comm/executor_bench.h"
#include "comm/ranks.h"
#include "cpus.h"
#include "exec/run.h"
#include "transports/testing.h"

using namespace tutti_test;

namespace {

double cpu_seconds_of_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

// By spinning it would keep its peer from running, for as long as another process has the other CPUs.
TEST_CASE("a rank that finds whom it waits for on its CPU yields from then on, for thousands of operations") {
  using namespace tutti;
  const bool is_here = GENERATE(true, false);
  test::Bench bench;
  bench.add_lane(std::vector<BoundStep>(64, bench.receive()));  // another process's time slice may end it early
  const tuttiMessage message = bench.message(bench.theirs.data());
  int64_t since_ns = now_ns();
  bool has_yielded = false;
  bench.from.on_peek = [&] {
    has_yielded = has_yielded || bench.spins.is_on();
    bench.from.wait.peer_cpu_plus_1 = static_cast<uint32_t>(sched_getcpu() + (is_here ? 1 : 1000));
    if (now_ns() - since_ns < 400'000 || !bench.from.messages.empty()) return;
    since_ns = now_ns();
    bench.from.messages.push_back(message);
  };
  test::Context context;
  Run run(bench.program, bench.operation, bench.recorder);
  REQUIRE(drive(run, context, {bench.spins, 20}));
  CHECK(has_yielded == is_here);

  bench.spins.start();
  int operations = 0;
  while (bench.spins.begin_operation() && operations < 100'000) operations++;
  CHECK(operations > 1000);
  CHECK(operations < 100'000);
  for (int i = 0; i < 100'000; i++) bench.yields.begin_operation();
  CHECK(bench.yields.is_on());  // ranks outnumber the CPUs
}

TEST_CASE("a rank that sleeps is woken by each of a link's descriptors, and when the link wants it to look again") {
  using namespace tutti;
  constexpr int kSleeps = 100;
  const Fd silent(eventfd(0, EFD_CLOEXEC)), speaks(eventfd(1, EFD_CLOEXEC));
  test::Bench bench;
  bench.from.may_sleep = true;
  const tuttiWait ways[] = {{silent.get(), POLLIN, 0, 1'000'000},
                            {silent.get(), POLLIN, 0, 0, 1, {{speaks.get(), POLLIN}}},
                            {silent.get(), POLLIN, 0, 0, 2, {{-1, 0}, {speaks.get(), POLLIN}}}};
  bench.from.wait = ways[GENERATE(0, 1, 2)];
  bench.add_lane({bench.receive()});
  bench.from.on_peek = [&] {
    if (bench.from.sleeps > kSleeps && bench.from.messages.empty())
      bench.from.messages.push_back(bench.message(bench.theirs.data()));
  };
  test::Context context;
  Run run(bench.program, bench.operation, bench.recorder);
  CHECK(drive(run, context, {bench.spins, 8}));  // if nothing wakes it, each sleep takes 0.1 s
}

TEST_CASE("a rank whose yields cost a time slice spins again") {
  using namespace tutti;
  const std::vector<int> cpus = cpus_here();
  REQUIRE(stay_on({cpus[0]}));
  std::atomic<bool> ends = false;
  std::thread stranger([&ends] {  // another thread on the same CPU
    while (!ends) pause_cpu();
  });
  Yielding yielding;
  yielding.start();
  CHECK(test::until([&] {
    yielding.give_way();
    return !yielding.is_on();
  }));
  ends = true;
  stranger.join();
  REQUIRE(stay_on(cpus));
}

TEST_CASE("a rank that waits sleeps soon beside a foreign process, and where its container has a CPU quota") {
  using tutti::Yielding;
  const int64_t soon_ns = Yielding().awake_ns(true);
  CHECK(soon_ns < Yielding(true).awake_ns(false));
  CHECK(Yielding(true).awake_ns(false) < Yielding().awake_ns(false));
  for (const bool always : {false, true}) CHECK(Yielding(always, true).awake_ns(false) == soon_ns);
}

TEST_CASE("a rank whose CPUs are shared with another group yields in small operations, and sleeps sooner") {
  using tutti::Yielding;
  Yielding own, crowded(false, false, true);
  for (int i = 0; i < 3; i++) {
    CHECK_FALSE(own.begin_operation());
    CHECK(crowded.begin_operation());
  }
  CHECK_FALSE(crowded.is_on());
  CHECK(crowded.awake_ns(false) < own.awake_ns(false));
}

TEST_CASE("a rank naps where each operation costs a time slice, the longer the more often it finds that out again") {
  using tutti::Yielding;
  constexpr int64_t kMs = 1'000'000;
  // How many slices it takes until the rank naps; 0 if it does not.
  const auto slices_until_nap = [](Yielding& yielding, int slices, int operations_each, int64_t slice_ns) {
    for (int i = 1; i <= slices; i++) {
      for (int k = 0; k < operations_each; k++) yielding.begin_operation();
      yielding.took(slice_ns);
      if (yielding.naps()) return i;
    }
    return 0;
  };
  const auto naps = [](Yielding& yielding) {
    int n = 0;
    for (const bool is_on = yielding.is_on(); !yielding.begin_operation() && n < 100'000; n++)
      CHECK(yielding.is_on() == is_on);
    CHECK_FALSE(yielding.naps());
    return n;
  };
  const bool always = GENERATE(true, false);
  Yielding yielding(always, false, !always);
  for (int time = 0; time < 2; time++) {
    CHECK(slices_until_nap(yielding, 20, 1, 4 * kMs) > 5);  // it may be over soon
    const int first = naps(yielding);
    CHECK(first < 1000);  // it may be peers that compute, or end now
    int longest = first;
    for (int again = 0; again < 10; again++) {
      const int slices = slices_until_nap(yielding, 20, 1, 4 * kMs);
      CHECK((slices > 0 && slices < 5));
      const int n = naps(yielding);
      CHECK(n >= longest);
      longest = n;
    }
    CHECK(longest > 1000);
    CHECK(longest < 100'000);
    for (int quiet = 0; quiet < 1000; quiet++) yielding.begin_operation();
  }
  Yielding some(true), none(true), spins;
  CHECK(slices_until_nap(some, 1000, 1000, 4 * kMs) == 0);  // another session's process: no slice for most operations
  CHECK(slices_until_nap(none, 1000, 1, kMs) == 0);         // other ranks
  spins.start();
  CHECK(slices_until_nap(spins, 1000, 1, 4 * kMs) == 0);
  CHECK_FALSE(spins.is_on());
}

TEST_CASE("a rank that naps leaves its CPU until its message has come") {
  using namespace tutti;
  test::Bench bench;
  bench.add_lane({bench.receive()});
  const tuttiMessage message = bench.message(bench.theirs.data());
  for (int i = 0; i < 100; i++) bench.yields.took(4'000'000);
  const auto times_left = [] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  const long before = times_left();
  int looks = 0;
  bench.from.on_peek = [&] {
    looks++;
    if (times_left() > before && bench.from.messages.empty()) bench.from.messages.push_back(message);
  };
  test::Context context;
  Run run(bench.program, bench.operation, bench.recorder);
  REQUIRE(drive(run, context, {bench.yields, 20}));
  CHECK(looks < 10);  // thousands if it yielded until it sleeps
}

TEST_CASE("a rank that waits for two seconds uses less than a twentieth of a CPU, and still gets its sum",
          "[processes]") {
  const char* transport = GENERATE("shm", "tcp");
  const size_t count = GENERATE(1, 100000);
  INFO(transport << ", " << count << " elements");
  setenv("TUTTI_TRANSPORTS", transport, 1);
  Processes ranks(2, [count](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<int32_t> data(count, rank + 1);
    const auto add_up = [&] {
      outcome.take(tuttiAllReduce(data.data(), data.data(), count, tuttiInt32, tuttiSum, comm, nullptr));
    };
    add_up();
    if (rank == 1) usleep(2'000'000);
    const double before = cpu_seconds_of_thread();
    add_up();
    const double used = cpu_seconds_of_thread() - before;
    outcome.wrong += data[0] != 6 || data[count - 1] != 6;
    if (rank == 0 && used > 0.1) outcome.wrong += 1000;
    outcome.take(tuttiCommDestroy(comm));
  });
  unsetenv("TUTTI_TRANSPORTS");
  require_success(ranks.wait());
}

TEST_CASE("a rank of a small group leaves the CPU as soon as one of the larger group that it shares CPUs with",
          "[processes]") {
  const std::vector<int> cpus = cpus_here();
  std::vector<int> two = cpus;
  if (two.size() > 2) two.resize(2);
  REQUIRE(stay_on(two));
  Processes ranks(static_cast<int>(two.size()) + 1, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t pair = nullptr;
    outcome.take(tuttiCommSplit(comm, rank < 2 ? 0 : TUTTI_SPLIT_NOCOLOR, 0, &pair, nullptr));
    for (int time = 0; pair != nullptr && time < 10; time++) {
      outcome.take(tuttiBarrier(pair, nullptr));
      if (rank == 1) usleep(50'000);
      const double before = cpu_seconds_of_thread();
      outcome.take(tuttiBarrier(pair, nullptr));
      if (rank == 0 && cpu_seconds_of_thread() - before > 0.005) outcome.wrong++;
    }
    if (pair != nullptr) outcome.take(tuttiCommDestroy(pair));
    outcome.take(tuttiCommDestroy(comm));
  });
  require_success(ranks.wait());
  REQUIRE(stay_on(cpus));
}

// It would sleep until its next look at the rest of the group, 0.1 s later.
TEST_CASE("a rank whose last message has left while it waited does not go to sleep") {
  using namespace tutti;
  constexpr uint32_t kBytes = 64 << 20;  // more than the kernel accepts at once
  test::Pair pair = test::make_pair(&kTcpTransport, test::Ask{1, 0, 2, kBytes});
  Program program;
  program.sizes.slot_bytes = kBytes;
  program.sends = {&pair.out};
  const BoundCall operation{};
  const Recorder recorder;
  Run run(program, operation, recorder);
  const std::vector<char> data(kBytes, 'x');
  REQUIRE(pair.out.acquire() != nullptr);
  REQUIRE(pair.out.publish(data.data(), kBytes, tuttiTag{}));
  const auto goes_to_sleep = [&] {
    std::vector<Blockers::Sleeper> sleepers;
    const bool sleeps = run.blockers().prepare_sleep(&sleepers);
    for (const Blockers::Sleeper& sleeper : sleepers) sleeper.link->wait_end();
    return sleeps;
  };
  CHECK(goes_to_sleep());
  tuttiMessage message{};
  REQUIRE(test::until([&] {
    (void)test::poll_once(pair.in);
    return run.blockers().poll() && pair.in.peek(&message);
  }));
  CHECK_FALSE(goes_to_sleep());
}

TEST_CASE("a group of messages that goes on may wait for a link longer than the limit without progress", "[waits]") {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.opTimeoutSeconds = 1;
  constexpr size_t kCount = 1 << 20;
  std::barrier all(3);
  require_success(run_threads(3, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<float> data(kCount);
    float word = 0;
    const auto pause = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
    if (rank == 0) {
      outcome.take(tuttiSend(data.data(), 1, tuttiFloat, 1, comm, nullptr));
      outcome.take(tuttiGroupStart());
      for (int i = 0; i < 20; i++) outcome.take(tuttiSend(data.data(), kCount, tuttiFloat, 1, comm, nullptr));
      outcome.take(tuttiRecv(&word, 1, tuttiFloat, 2, comm, nullptr));
      outcome.take(tuttiGroupEnd());
    } else if (rank == 1) {
      outcome.take(tuttiRecv(data.data(), 1, tuttiFloat, 0, comm, nullptr));
      for (int i = 0; i < 20; i++, pause(100))
        outcome.take(tuttiRecv(data.data(), kCount, tuttiFloat, 0, comm, nullptr));
    } else {
      pause(1500);
      outcome.take(tuttiSend(data.data(), 1, tuttiFloat, 0, comm, nullptr));
    }
    all.arrive_and_wait();
  }));
}

// As by ^Z or a batch system that suspends the job.
TEST_CASE("time in which all ranks are stopped is no wait without progress", "[processes]") {
  struct Stage {
    std::atomic<int> n_ready{0};
    std::atomic<bool> goes{false};
  };
  void* const memory = mmap(nullptr, sizeof(Stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  Stage& stage = *new (memory) Stage;
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.opTimeoutSeconds = 3;
  Processes ranks(
      2,
      [&stage](int rank, tuttiComm_t comm, Outcome& outcome) {
        outcome.take(tuttiBarrier(comm, nullptr));
        stage.n_ready++;
        while (rank == 1 && !stage.goes) usleep(1000);
        outcome.take(tuttiBarrier(comm, nullptr));
      },
      &config);
  const bool are_ready = tutti::test::until([&] { return stage.n_ready == 2; });
  usleep(200'000);  // until rank 0 waits
  for (const int rank : {0, 1}) kill(ranks.pid(rank), SIGSTOP);
  usleep(5'000'000);
  for (const int rank : {0, 1}) kill(ranks.pid(rank), SIGCONT);
  usleep(300'000);  // rank 0 looks at the time
  stage.goes = true;
  const auto outcomes = ranks.wait();
  munmap(memory, sizeof(Stage));
  CHECK(are_ready);
  require_success(outcomes);
}
