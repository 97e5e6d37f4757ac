// Events and callbacks: order within a stream, waiting between streams.
#include <atomic>
#include <new>

#include "comm/ranks.h"
#include "exec/stream.h"

using namespace tutti_test;

TEST_CASE("an event is reached when its stream comes to it, and holds other streams back") {
  tuttiStream_t first = nullptr, second = nullptr;
  tuttiEvent_t event = nullptr;
  REQUIRE(tuttiStreamCreate(&first) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&second) == tuttiSuccess);
  REQUIRE(tuttiEventCreate(&event) == tuttiSuccess);
  CHECK(tuttiEventQuery(event) == tuttiSuccess);  // never recorded
  struct Gate {
    std::atomic<bool> open{false}, passed{false};
  } gate;
  const auto hold = [](tuttiStream_t, tuttiResult_t, void* user) {
    while (!static_cast<Gate*>(user)->open) std::this_thread::yield();
  };
  const auto pass = [](tuttiStream_t, tuttiResult_t, void* user) { static_cast<Gate*>(user)->passed = true; };
  CHECK(tuttiStreamAddCallback(first, hold, &gate) == tuttiSuccess);
  CHECK(tuttiEventRecord(event, first) == tuttiSuccess);
  CHECK(tuttiStreamWaitEvent(second, event) == tuttiSuccess);
  CHECK(tuttiStreamAddCallback(second, pass, &gate) == tuttiSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(tuttiEventQuery(event) == tuttiInProgress);
  CHECK(tuttiStreamQuery(second) == tuttiInProgress);
  CHECK_FALSE(gate.passed.load());
  gate.open = true;
  CHECK(tuttiEventSynchronize(event) == tuttiSuccess);
  CHECK(tuttiStreamSynchronize(second) == tuttiSuccess);
  CHECK(gate.passed.load());
  CHECK(tuttiEventRecord(event, nullptr) == tuttiSuccess);
  CHECK(tuttiEventQuery(event) == tuttiSuccess);
  CHECK(tuttiStreamWaitEvent(nullptr, event) == tuttiSuccess);
  CHECK(tuttiEventDestroy(event) == tuttiSuccess);
  CHECK(tuttiEventQuery(event) == tuttiInvalidArgument);
  CHECK(tuttiEventCreate(nullptr) == tuttiInvalidArgument);
  CHECK(tuttiStreamAddCallback(first, nullptr, nullptr) == tuttiInvalidArgument);
  CHECK(tuttiStreamDestroy(first) == tuttiSuccess);
  CHECK(tuttiStreamDestroy(second) == tuttiSuccess);
}

TEST_CASE("who waits for an event's point on one stream is not let go by a later point on another one") {
  tuttiStream_t slow = nullptr, fast = nullptr, waits = nullptr;
  tuttiEvent_t event = nullptr;
  for (tuttiStream_t* stream : {&slow, &fast, &waits}) REQUIRE(tuttiStreamCreate(stream) == tuttiSuccess);
  REQUIRE(tuttiEventCreate(&event) == tuttiSuccess);
  using Flag = std::atomic<bool>;
  Flag may_end{false}, passed{false};
  const auto hold = [](tuttiStream_t, tuttiResult_t, void* user) {
    while (!*static_cast<Flag*>(user)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto pass = [](tuttiStream_t, tuttiResult_t, void* user) { *static_cast<Flag*>(user) = true; };
  CHECK(tuttiStreamAddCallback(slow, hold, &may_end) == tuttiSuccess);
  CHECK(tuttiEventRecord(event, slow) == tuttiSuccess);
  CHECK(tuttiStreamWaitEvent(waits, event) == tuttiSuccess);
  CHECK(tuttiStreamAddCallback(waits, pass, &passed) == tuttiSuccess);
  for (tuttiStream_t later : {fast, tuttiStream_t{nullptr}}) {
    CHECK(tuttiEventRecord(event, later) == tuttiSuccess);
    CHECK(tuttiEventSynchronize(event) == tuttiSuccess);  // the later point, which nothing blocks
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(passed.load());
  }
  may_end = true;
  for (tuttiStream_t stream : {waits, fast, slow}) CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  CHECK(passed.load());
  CHECK(tuttiEventDestroy(event) == tuttiSuccess);
}

TEST_CASE("who waits for an event waits for the point that it marked then, though it is recorded again") {
  using Flag = std::atomic<bool>;
  tuttiStream_t records = nullptr, waits = nullptr;
  tuttiEvent_t event = nullptr;
  REQUIRE(tuttiStreamCreate(&records) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&waits) == tuttiSuccess);
  REQUIRE(tuttiEventCreate(&event) == tuttiSuccess);
  Flag may_wait{false}, may_end{false}, passed{false};
  const auto hold = [](tuttiStream_t, tuttiResult_t, void* user) {
    while (!*static_cast<Flag*>(user)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const auto pass = [](tuttiStream_t, tuttiResult_t, void* user) { *static_cast<Flag*>(user) = true; };
  CHECK(tuttiEventRecord(event, records) == tuttiSuccess);
  CHECK(tuttiStreamAddCallback(waits, hold, &may_wait) == tuttiSuccess);
  CHECK(tuttiStreamWaitEvent(waits, event) == tuttiSuccess);
  CHECK(tuttiStreamAddCallback(waits, pass, &passed) == tuttiSuccess);
  CHECK(tuttiStreamAddCallback(records, hold, &may_end) == tuttiSuccess);
  CHECK(tuttiEventRecord(event, records) == tuttiSuccess);
  may_wait = true;
  for (int i = 0; i < 5000 && !passed; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(passed.load());
  CHECK(tuttiEventQuery(event) == tuttiInProgress);
  may_end = true;
  CHECK(tuttiEventSynchronize(event) == tuttiSuccess);
  CHECK(tuttiStreamDestroy(records) == tuttiSuccess);
  CHECK(tuttiStreamDestroy(waits) == tuttiSuccess);
  CHECK(tuttiEventDestroy(event) == tuttiSuccess);
}

TEST_CASE("who waits for an event on no stream waits in the call") {
  tuttiStream_t stream = nullptr;
  tuttiEvent_t event = nullptr;
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  REQUIRE(tuttiEventCreate(&event) == tuttiSuccess);
  const auto hold = [](tuttiStream_t, tuttiResult_t, void*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  };
  CHECK(tuttiStreamAddCallback(stream, hold, nullptr) == tuttiSuccess);
  CHECK(tuttiEventRecord(event, stream) == tuttiSuccess);
  CHECK(tuttiStreamWaitEvent(nullptr, event) == tuttiSuccess);
  CHECK(tuttiEventQuery(event) == tuttiSuccess);
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  CHECK(tuttiEventDestroy(event) == tuttiSuccess);
}

TEST_CASE("an event that two streams record is reached when the later record is, whatever the other stream does") {
  using Flag = std::atomic<bool>;
  tuttiStream_t slow = nullptr, quick = nullptr;
  tuttiEvent_t event = nullptr;
  REQUIRE(tuttiStreamCreate(&slow) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&quick) == tuttiSuccess);
  REQUIRE(tuttiEventCreate(&event) == tuttiSuccess);
  Flag may_end{false};
  const auto hold = [](tuttiStream_t, tuttiResult_t, void* user) {
    while (!*static_cast<Flag*>(user)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  CHECK(tuttiStreamAddCallback(slow, hold, &may_end) == tuttiSuccess);
  CHECK(tuttiEventRecord(event, slow) == tuttiSuccess);
  CHECK(tuttiEventRecord(event, quick) == tuttiSuccess);
  CHECK(tuttiEventSynchronize(event) == tuttiSuccess);
  may_end = true;
  CHECK(tuttiStreamDestroy(slow) == tuttiSuccess);
  CHECK(tuttiEventQuery(event) == tuttiSuccess);
  CHECK(tuttiStreamDestroy(quick) == tuttiSuccess);
  CHECK(tuttiEventDestroy(event) == tuttiSuccess);
}

// Our operations are queued behind one of the others' communicator, which waits for a rank.
TEST_CASE("an abort does not wait for what its operations are queued behind") {
  const bool shrinks = GENERATE(false, true), revokes = !shrinks && GENERATE(false, true);
  tuttiComm_t ours[2] = {}, others[2] = {}, left[2] = {};
  tuttiStream_t stream = nullptr;
  REQUIRE(tuttiCommInitAll(ours, 2, nullptr) == tuttiSuccess);
  REQUIRE(tuttiCommInitAll(others, 2, nullptr) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  CHECK(tuttiBarrier(others[0], stream) == tuttiSuccess);
  for (int i = 0; i < 2; i++) CHECK(tuttiBarrier(ours[0], stream) == tuttiSuccess);
  tuttiResult_t results[2] = {};
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (int r = 0; r < (shrinks ? 2 : 1); r++)
    threads.emplace_back([&, r] {
      results[r] = shrinks   ? tuttiCommShrink(ours[r], nullptr, 0, &left[r], nullptr, TUTTI_SHRINK_ABORT)
                   : revokes ? tuttiCommRevoke(ours[r], 0)
                             : tuttiCommAbort(ours[r]);
      ended++;
    });
  const int all = static_cast<int>(threads.size());
  for (int i = 0; i < 30000 && ended < all; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(ended == all);
  CHECK(tuttiStreamQuery(stream) == tuttiInProgress);
  CHECK(tuttiBarrier(others[1], nullptr) == tuttiSuccess);
  for (std::thread& thread : threads) thread.join();
  for (const tuttiResult_t result : results) CHECK(result == tuttiSuccess);
  CHECK(tuttiStreamSynchronize(stream) == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "tuttiCommAbort"));
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  for (tuttiComm_t comm : {shrinks || revokes ? ours[0] : nullptr, ours[1], left[0], left[1], others[0], others[1]})
    if (comm != nullptr) CHECK(tuttiCommAbort(comm) == tuttiSuccess);
}

TEST_CASE("an abort does not wait for the other communicators of a group") {
  const bool splits = GENERATE(false, true);
  tuttiComm_t ours[2] = {}, others[2] = {}, parts[2] = {};
  REQUIRE(tuttiCommInitAll(ours, 2, nullptr) == tuttiSuccess);
  REQUIRE(tuttiCommInitAll(others, 2, nullptr) == tuttiSuccess);
  const auto call = [&](tuttiComm_t comm, tuttiComm_t* part) {
    return splits ? tuttiCommSplit(comm, 0, 0, part, nullptr) : tuttiBarrier(comm, nullptr);
  };
  std::atomic<bool> is_aborted{false};
  tuttiResult_t ended = tuttiSuccess, aborted = tuttiSuccess;
  std::thread group([&] {
    tuttiGroupStart();
    for (tuttiComm_t comm : {ours[0], others[0]}) (void)call(comm, &parts[0]);
    ended = tuttiGroupEnd();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // mostly, the group runs by now
  std::thread aborts([&] {
    aborted = tuttiCommAbort(ours[0]);
    is_aborted = true;
  });
  for (int i = 0; i < 30000 && !is_aborted; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(is_aborted);
  CHECK(call(others[1], &parts[1]) == tuttiSuccess);
  group.join();
  aborts.join();
  CHECK(aborted == tuttiSuccess);
  CHECK(ended == tuttiInvalidUsage);
  for (tuttiComm_t comm : {ours[1], others[0], others[1], parts[0], parts[1]})
    if (comm != nullptr) CHECK(tuttiCommAbort(comm) == tuttiSuccess);
}

TEST_CASE("an abort does not wait for operations that a group queues only then") {
  const bool also_without = GENERATE(false, true);  // one without a stream, which comes first
  tuttiComm_t ours[2] = {}, others[2] = {};
  tuttiStream_t stream = nullptr;
  REQUIRE(tuttiCommInitAll(ours, 2, nullptr) == tuttiSuccess);
  REQUIRE(tuttiCommInitAll(others, 2, nullptr) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  CHECK(tuttiBarrier(others[0], stream) == tuttiSuccess);
  CHECK(tuttiGroupStart() == tuttiSuccess);
  if (also_without) CHECK(tuttiBarrier(ours[0], nullptr) == tuttiSuccess);
  CHECK(tuttiBarrier(ours[0], stream) == tuttiSuccess);
  std::atomic<bool> ended{false};
  tuttiResult_t result = tuttiInternalError;
  std::thread aborts([&] {
    result = tuttiCommAbort(ours[0]);
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until it waits for this group
  CHECK_FALSE(ended);
  CHECK(tuttiGroupEnd() == (also_without ? tuttiInvalidUsage : tuttiSuccess));
  for (int i = 0; i < 30000 && !ended; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(ended);
  CHECK(tuttiStreamQuery(stream) == tuttiInProgress);
  CHECK(tuttiBarrier(others[1], nullptr) == tuttiSuccess);
  aborts.join();
  CHECK(result == tuttiSuccess);
  CHECK(tuttiStreamSynchronize(stream) == tuttiInvalidUsage);
  CHECK(tuttiStreamDestroy(stream) == tuttiSuccess);
  for (tuttiComm_t comm : {ours[1], others[0], others[1]}) CHECK(tuttiCommAbort(comm) == tuttiSuccess);
}

TEST_CASE("a callback hears of the operations before it, also of their failure") {
  const auto outcomes = run_threads(2, nullptr, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiStream_t stream = nullptr;
    outcome.take(tuttiStreamCreate(&stream));
    struct Heard {
      tuttiResult_t status = tuttiNumResults;
      std::string why;
    } heard[2];
    const auto listen = [](tuttiStream_t, tuttiResult_t status, void* user) {
      *static_cast<Heard*>(user) = {status, status == tuttiSuccess ? "" : tuttiGetLastError(nullptr)};
    };
    int32_t value[2] = {rank, rank};
    outcome.take(tuttiAllReduce(value, value, 1, tuttiInt32, tuttiSum, comm, stream));
    outcome.take(tuttiStreamAddCallback(stream, listen, &heard[0]));
    outcome.take(tuttiAllReduce(value, value, rank == 0 ? 1 : 2, tuttiInt32, tuttiSum, comm, stream));
    outcome.take(tuttiStreamAddCallback(stream, listen, &heard[1]));
    outcome.wrong += tuttiStreamSynchronize(stream) != tuttiInvalidUsage;
    outcome.wrong += heard[0].status != tuttiSuccess || heard[1].status != tuttiInvalidUsage;
    outcome.wrong += heard[1].why != tuttiGetLastError(nullptr);
    outcome.wrong += tuttiStreamQuery(stream) != tuttiSuccess;  // the first query took the error
    outcome.take(tuttiStreamDestroy(stream));
  });
  for (const Outcome& outcome : outcomes) {
    CHECK(outcome.wrong == 0);
    CHECK(outcome.code == tuttiInvalidUsage);  // from tuttiCommDestroy: the communicator is broken
  }
}

TEST_CASE("a stream tells of its error as often as it is asked, and once more when it is destroyed") {
  tuttiComm_t comm = nullptr;
  tuttiStream_t stream = nullptr;
  REQUIRE(tuttiCommInitAll(&comm, 1, nullptr) == tuttiSuccess);
  REQUIRE(tuttiStreamCreate(&stream) == tuttiSuccess);
  CHECK(tuttiCommFinalize(comm) == tuttiSuccess);
  int32_t value = 1;
  const auto fail = [&] {
    CHECK(tuttiAllReduce(&value, &value, 1, tuttiInt32, tuttiSum, comm, stream) == tuttiSuccess);
  };
  const auto outcome = [&] {
    tuttiResult_t state = tuttiInProgress;
    for (int i = 0; i < 5000 && state == tuttiInProgress; i++) {
      state = tuttiStreamQuery(stream);
      if (state == tuttiInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return state;
  };
  fail();
  CHECK(outcome() == tuttiInvalidUsage);
  CHECK(outcome() == tuttiInvalidUsage);
  CHECK(tuttiStreamSynchronize(stream) == tuttiInvalidUsage);
  CHECK(outcome() == tuttiSuccess);
  fail();
  CHECK(tuttiStreamDestroy(stream) == tuttiInvalidUsage);
  CHECK(contains(tuttiGetLastError(nullptr), "was finalized"));
  CHECK(tuttiCommDestroy(comm) == tuttiSuccess);
}

TEST_CASE("a stream's work that finds no memory is an error of the stream, which goes on") {
  const auto stream = std::move(tutti::Stream::create()).value();
  bool goes_on = false;
  stream->enqueue([]() -> tutti::Result<void> { throw std::bad_alloc(); });
  stream->enqueue([&]() -> tutti::Result<void> {
    goes_on = true;
    return {};
  });
  const auto done = stream->synchronize();
  CHECK(goes_on);
  REQUIRE(!done);
  CHECK(done.error().message == "out of memory");
}
