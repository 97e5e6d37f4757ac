// Streams as CUDA has them: a handle that means a different stream in every thread, and handles that are reused.
#include <atomic>
#include <barrier>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "catch.h"
#include "gpu_ranks.h"

using namespace tutti;
using namespace tutti_test;

namespace {

constexpr int kStreamRanks = 3;
constexpr size_t kStreamElems = 1000;

// Blocks everything that comes after it in a stream.
struct Gate {
  uint32_t word = 0;
  void stand_in(FakePort& port, cuda::StreamRef stream) {
    const cuda::WordOperation waits{&word, 1, true};
    (void)port.words(&waits, 1, stream);
  }
  void open() { __atomic_store_n(&word, 1, __ATOMIC_RELEASE); }
};

// Time for work that does not wait to finish, most likely; the result does not depend on it.
void give_time() {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

using Numbers = std::vector<int32_t>;
void copy(FakePort& port, Numbers& to, const Numbers& from, cuda::StreamRef stream) {
  (void)port.copy(to.data(), from.data(), to.size() * sizeof to[0], stream);
}
size_t not_equal(const Numbers& numbers, int32_t value) {
  size_t n = 0;
  for (const int32_t number : numbers) n += number != value;
  return n;
}

}  // namespace

TEST_CASE("the stream of every thread is another one, though they have the same handle") {
  FakePort port(kStreamRanks);
  for (const Seats seats : kAllSeats) {
    std::vector<Gate> gates(kStreamRanks * kStreamRanks);
    std::barrier all(kStreamRanks);
    require_success(run_gpu_threads(port, kStreamRanks, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      for (int round = 0; round < kStreamRanks; round++) {
        Numbers source(kStreamElems, r + 1), data(kStreamElems);
        gates[static_cast<size_t>(round * kStreamRanks + r)].stand_in(port, kStreamPerThread);
        copy(port, data, source, kStreamPerThread);
        o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, gpu,
                              as_tutti(kStreamPerThread)));
        all.arrive_and_wait();
        for (int i = 0; i < kStreamRanks && r == 0; i++) {
          gates[static_cast<size_t>(round * kStreamRanks + (round + i) % kStreamRanks)].open();
          give_time();
        }
        (void)port.synchronize(kStreamPerThread);
        o.wrong += not_equal(data, 6);
      }
    }));
  }
}

TEST_CASE("a stream with the handle of one that was destroyed comes after that one's operations") {
  FakePort port(kStreamRanks);
  std::atomic<int> had_the_handle{0};  // not all of them: another thread may have got the memory meanwhile
  for (const Seats seats : kAllSeats) {
    std::vector<Gate> gates(kStreamRanks);
    std::barrier all(kStreamRanks);
    std::mutex one_by_one;
    require_success(run_gpu_threads(port, kStreamRanks, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      Numbers source(kStreamElems, r + 1), data(kStreamElems), again(kStreamElems);
      cuda::StreamRef first = port.create_stream().value(), second = nullptr;
      gates[static_cast<size_t>(r)].stand_in(port, first);
      copy(port, data, source, first);
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, gpu, as_tutti(first)));
      {
        const std::lock_guard lock(one_by_one);
        port.destroy_stream(first);
        second = port.create_stream().value();
      }
      had_the_handle += second == first;
      o.take(tuttiAllReduce(data.data(), again.data(), data.size(), tuttiInt32, tuttiSum, gpu, as_tutti(second)));
      give_time();
      all.arrive_and_wait();
      gates[static_cast<size_t>(r)].open();
      (void)port.synchronize(second);
      o.wrong += not_equal(again, 18);
      port.destroy_stream(second);
    }));
  }
  CHECK(had_the_handle > 0);
}

TEST_CASE("a message takes what its sender's stream has done before, and nothing of what that does later") {
  FakePort port(1);
  for (const bool sender_is_late : {true, false}) {
    std::vector<Gate> gates(2);
    std::barrier all(2);
    require_success(run_gpu_threads(port, 2, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      const Numbers before(kStreamElems, 1), after(kStreamElems, 2);
      Numbers data(kStreamElems);
      GpuStream stream(port);
      gates[static_cast<size_t>(r)].stand_in(port, stream.ref());
      if (r == 0) {
        copy(port, data, before, stream.ref());
        o.take(tuttiSend(data.data(), data.size(), tuttiInt32, 1, gpu, stream));
        copy(port, data, after, stream.ref());
      } else {
        o.take(tuttiRecv(data.data(), data.size(), tuttiInt32, 0, gpu, stream));
      }
      all.arrive_and_wait();
      if (r == 0) {
        gates[sender_is_late ? 1 : 0].open();
        give_time();
        gates[sender_is_late ? 0 : 1].open();
      }
      stream.synchronize();
      o.wrong += not_equal(data, r == 0 ? 2 : 1);
      all.arrive_and_wait();  // a wrong operation may still read it
    }));
  }
}

TEST_CASE("the streams of ranks that share a GPU all wait for what one of them does for all") {
  FakePort port(1);
  for (const int late : {0, 1}) {
    Gate gate;
    std::barrier all(2);
    require_success(run_gpu_threads(port, 2, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      Numbers data(kStreamElems, r + 1);
      GpuStream stream(port);
      if (r == late) gate.stand_in(port, stream.ref());
      o.take(tuttiAllReduce(data.data(), data.data(), data.size(), tuttiInt32, tuttiSum, gpu, stream));
      all.arrive_and_wait();
      if (r != late) {
        give_time();
        o.wrong += port.has_ended(stream.ref()).value();
        gate.open();
      }
      stream.synchronize();
      o.wrong += not_equal(data, 3);
      all.arrive_and_wait();  // a wrong operation may still read it
    }));
  }
}

TEST_CASE("two threads of a rank that call at once have each their own stream of every thread") {
  FakePort port(1);
  std::barrier start(3), have_called(2);
  std::vector<Gate> gates(2 * 20);
  require_success(run_gpu_threads(port, 2, Seats::kTogether, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    for (size_t round = 0; round < 20; round++) {
      const Numbers source(kStreamElems, r + 1);
      Numbers data[2] = {Numbers(kStreamElems), Numbers(kStreamElems)};
      const auto add_up = [&](Numbers& numbers, cuda::StreamRef stream) {
        return tuttiAllReduce(numbers.data(), numbers.data(), numbers.size(), tuttiInt32, tuttiSum, gpu,
                              as_tutti(stream));
      };
      if (r == 1) {
        GpuStream stream(port);
        for (Numbers& numbers : data) copy(port, numbers, source, stream.ref());
        start.arrive_and_wait();
        give_time();  // by then both threads of the other rank wait
        for (Numbers& numbers : data) o.take(add_up(numbers, stream.ref()));
        stream.synchronize();
        continue;
      }
      std::atomic<size_t> wrong{0};
      const auto call = [&](size_t thread) {
        Gate& gate = gates[2 * round + thread];
        gate.stand_in(port, kStreamPerThread);
        copy(port, data[thread], source, kStreamPerThread);
        start.arrive_and_wait();
        wrong += add_up(data[thread], kStreamPerThread) != tuttiSuccess;
        have_called.arrive_and_wait();
        if (thread == 1) give_time();
        gate.open();
        (void)port.synchronize(kStreamPerThread);
        wrong += not_equal(data[thread], 3);
      };
      std::thread other(call, 1);
      call(0);
      other.join();
      o.wrong += wrong;
    }
  }));
}

TEST_CASE("a barrier on GPUs holds every stream up until all have come to it") {
  FakePort port(3);
  for (const Seats seats : kAllSeats) {
    INFO(static_cast<int>(seats));
    Gate gate;
    std::barrier all(3);
    require_success(run_gpu_threads(port, 3, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      GpuStream stream(port);
      if (r == 1) gate.stand_in(port, stream.ref());
      o.take(tuttiBarrier(gpu, stream));
      all.arrive_and_wait();
      if (r != 1) give_time();
      const auto has_ended = port.has_ended(stream.ref());
      o.wrong += !has_ended || has_ended.value();
      all.arrive_and_wait();
      if (r == 1) gate.open();
      stream.synchronize();
    }));
  }
}

TEST_CASE("what is dropped in a call still uses the library's memory until its stream has done what it has of it") {
  FakePort port(1);
  Gate gate;
  std::atomic<int> freed{-1};
  std::barrier all(2);
  const tuttiUniqueId id = new_id();
  std::vector<Outcome> outcomes(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++)
    threads.emplace_back([&, r] {
      Outcome& o = outcomes[static_cast<size_t>(r)];
      tuttiConfig_t config = config_of(Seats::kTogether, r);
      tuttiComm_t comm = nullptr;
      o.take(tuttiCommInitRankConfig(&comm, 2, id, r, &config));
      all.arrive_and_wait();
      if (r == 0) {
        std::vector<float> data(kStreamElems);
        GpuStream stream(port);
        gate.stand_in(port, stream.ref());
        std::thread caller([&] {
          o.code = tuttiAllReduceQuantized(data.data(), data.data(), data.size(), tuttiFloat, tuttiSum, tuttiInt8, 64,
                                           nullptr, comm, stream);
        });
        give_time();
        (void)tuttiCommRevoke(comm, 0);
        caller.join();
        const int before = port.host_frees;
        std::thread destroyer([&] { (void)tuttiCommDestroy(comm); });
        for (int i = 0; i < 5; i++) give_time();
        freed = port.host_frees - before;
        gate.open();
        destroyer.join();
        stream.synchronize();
      }
      all.arrive_and_wait();
      if (r == 1) (void)tuttiCommDestroy(comm);
    });
  for (auto& thread : threads) thread.join();
  CHECK(outcomes[0].code == tuttiInvalidUsage);
  CHECK(freed == 0);
}

TEST_CASE("a group's messages on two streams of a GPU wait for both, and both wait for them") {
  FakePort port(4);
  for (const Seats seats : kAllSeats) {
    require_success(run_gpu_threads(port, 2, seats, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
      GpuStream one(port), other(port);
      Gate gate;
      std::vector<Numbers> sent(3, Numbers(kStreamElems)), got = sent, ready;
      for (int32_t k = 0; k < 3; k++) ready.emplace_back(kStreamElems, 10 * r + k);
      Numbers seen(kStreamElems);
      const auto group = [&] {
        o.take(tuttiGroupStart());
        for (size_t k = 0; k < 3; k++) {
          o.take(tuttiSend(sent[k].data(), kStreamElems, tuttiInt32, 1 - r, gpu, k == 1 ? other : one));
          o.take(tuttiRecv(got[k].data(), kStreamElems, tuttiInt32, 1 - r, gpu, k == 1 ? one : other));
        }
        return tuttiGroupEnd();
      };
      gate.stand_in(port, other.ref());
      for (size_t k = 0; k < 3; k++) copy(port, sent[k], ready[k], other.ref());
      o.take(group());
      copy(port, seen, got[2], other.ref());
      give_time();
      gate.open();
      other.synchronize();
      for (int32_t k = 0; k < 3; k++) o.wrong += not_equal(got[static_cast<size_t>(k)], 10 * (1 - r) + k) != 0;
      o.wrong += not_equal(seen, 10 * (1 - r) + 2) != 0;
      FakeGraph graph;
      port.begin_capture(other.ref(), &graph);
      o.wrong += group() != tuttiInvalidUsage || !contains(tuttiGetLastError(nullptr), "captured");
      port.end_capture(&graph);
      one.synchronize();
    }));
  }
}

TEST_CASE("an operation in a capture that the program has spoilt is refused, and the group goes on") {
  FakePort port(2);
  require_success(run_gpu_threads(port, 2, Seats::kOwnGpus, [&](int r, tuttiComm_t gpu, tuttiComm_t, Outcome& o) {
    GpuStream stream(port);
    Numbers data(kStreamElems, r + 1);
    const auto add = [&] {
      return tuttiAllReduce(data.data(), data.data(), kStreamElems, tuttiInt32, tuttiSum, gpu, stream);
    };
    FakeGraph graph;
    port.begin_capture(stream.ref(), &graph);
    (void)port.has_ended(stream.ref());  // a question that CUDA forbids during captures
    o.wrong += add() != tuttiInvalidUsage || !contains(tuttiGetLastError(nullptr), "invalid");
    (void)port.end_capture(stream.ref());
    o.take(add());
    stream.synchronize();
    o.wrong += not_equal(data, 3) != 0;
  }));
}
