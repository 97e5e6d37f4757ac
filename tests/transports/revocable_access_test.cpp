// RevocableAccess, the real code, on a model's words: every order of both sides' steps, and of the arrival of their
// stores. A side's next step is found by running the side again with what its loads have returned so far, up to the
// next access to a word, which throws. The model does not cover loads that are executed early.
#include "transports/shm/revocable_access.h"

#include <algorithm>
#include <array>
#include <compare>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "catch.h"
#include "testing.h"

using namespace tutti::shm;
using namespace tutti::test;

namespace {

struct ModelStep {
  bool is_store = false;
  size_t word = 0;
  uint32_t value = 0;
  std::memory_order order{};
  auto operator<=>(const ModelStep&) const = default;
};

// For the side that is running now: what its steps have returned, 0 for a store.
std::vector<uint32_t> model_returned;
size_t n_repeated = 0;

class ModelWord {
 public:
  explicit ModelWord(size_t number = n_made++ % 2) : number_(number) {}
  void store(uint32_t value, std::memory_order order) { step({true, number_, value, order}); }
  uint32_t load(std::memory_order order) const { return step({false, number_, 0, order}); }

 private:
  static uint32_t step(const ModelStep& next) {
    if (n_repeated == model_returned.size()) throw next;
    return model_returned[n_repeated++];
  }
  static inline size_t n_made = 0;
  size_t number_;
};

enum class Stores { kAtOnce, kInOrder, kInAnyOrder };  // in any order, except release stores
struct ModelMachine {
  Stores stores = Stores::kInOrder;
  bool has_fences = true;    // a sequentially consistent store waits until all earlier ones have arrived
  bool has_releases = true;  // a release store arrives after the earlier ones
};

constexpr uint32_t kOwners = 2, kOthers = 1;
constexpr size_t kData = 2;
using ModelSide = std::function<int(RevocableAccess<ModelWord>&, ModelWord& data)>;

class Explorer {
 public:
  Explorer(ModelMachine machine, ModelSide user, ModelSide owner)
      : machine_(machine), sides_{std::move(user), std::move(owner)} {}

  // The violation in the first order of steps that goes wrong.
  std::string violation() {
    try {
      explore({});
    } catch (const std::string& what) {
      return what;
    }
    return "";
  }
  // The values that user and owner returned.
  const std::set<std::pair<int, int>>& ends() const { return ends_; }

 private:
  struct State {
    std::array<uint32_t, 3> memory{};
    std::array<std::vector<ModelStep>, 2> delayed;
    std::array<std::vector<uint32_t>, 2> returned;
    auto operator<=>(const State&) const = default;
  };

  void explore(const State& state) {
    if (!seen_.insert(state).second) return;
    std::array<int, 2> results{};
    bool has_ended = true;
    for (size_t side = 0; side < 2; side++) {
      has_ended &= state.delayed[side].empty();
      for (size_t i = 0; i < state.delayed[side].size(); i++)
        if (may_arrive(state.delayed[side], i)) explore(arrived(state, side, i));
      const auto next = next_of(side, state.returned[side], &results[side]);
      if (next) take(state, side, *next);
      has_ended &= !next;
    }
    if (has_ended) end(state, results);
  }

  std::optional<ModelStep> next_of(size_t side, const std::vector<uint32_t>& so_far, int* result) const {
    RevocableAccess<ModelWord> access;
    ModelWord data(kData);
    model_returned = so_far;
    n_repeated = 0;
    try {
      *result = sides_[side](access, data);
    } catch (const ModelStep& next) {
      return next;
    }
    return std::nullopt;
  }

  void take(State state, size_t side, const ModelStep& step) {
    auto& delayed = state.delayed[side];
    uint32_t value = 0;
    if (!step.is_store) {
      value = state.memory[step.word];
      for (const ModelStep& own : delayed)
        if (own.word == step.word) value = own.value;
    } else if (machine_.stores == Stores::kAtOnce) {
      state.memory[step.word] = step.value;
    } else if (machine_.has_fences && step.order == std::memory_order_seq_cst) {
      if (!delayed.empty()) return;  // it must still wait
      state.memory[step.word] = step.value;
    } else {
      delayed.push_back(step);
    }
    state.returned[side].push_back(value);
    explore(state);
  }

  bool may_arrive(const std::vector<ModelStep>& delayed, size_t i) const {
    if (machine_.stores == Stores::kInOrder || (machine_.has_releases && delayed[i].order != std::memory_order_relaxed))
      return i == 0;
    return std::none_of(delayed.begin(), delayed.begin() + static_cast<std::ptrdiff_t>(i),
                        [&](const ModelStep& earlier) { return earlier.word == delayed[i].word; });
  }

  static State arrived(State state, size_t side, size_t i) {
    auto& delayed = state.delayed[side];
    state.memory[delayed[i].word] = delayed[i].value;
    delayed.erase(delayed.begin() + static_cast<std::ptrdiff_t>(i));
    return state;
  }

  void end(const State& state, const std::array<int, 2>& results) {
    if (results[1] != 0 && state.memory[kData] != kOwners) throw std::string("written after the owner had it back");
    if (state.memory[0] != 0) throw std::string("in use for ever");
    ends_.insert({results[0], results[1]});
  }

  ModelMachine machine_;
  std::array<ModelSide, 2> sides_;
  std::set<State> seen_;
  std::set<std::pair<int, int>> ends_;
};

// Sides return how many times they had the memory.
int writes_twice(RevocableAccess<ModelWord>& access, ModelWord& data) {
  int times = 0;
  for (int i = 0; i < 2; i++) {
    if (!access.begin()) continue;
    times++;
    data.store(kOthers, std::memory_order_relaxed);
    access.end();
  }
  return times;
}

template <bool looks_after>
int reads_twice(RevocableAccess<ModelWord>& access, ModelWord& data) {
  int times = 0;
  for (int i = 0; i < 2; i++) {
    if (!access.begin()) continue;
    const bool is_newer = data.load(std::memory_order_relaxed) == kOwners;
    if (looks_after && access.was_revoked()) continue;
    if (is_newer) throw std::string("read after the owner had it back");
    times++;
    access.end();
  }
  if (looks_after) access.end();
  return times;
}

template <bool waits>
int takes_back(RevocableAccess<ModelWord>& access, ModelWord& data) {
  access.revoke();
  bool is_used = true;
  for (int i = 0; i < 3 && is_used; i++) is_used = access.is_used() && waits;
  if (!is_used) data.store(kOwners, std::memory_order_relaxed);
  return waits && !is_used ? 1 : 0;
}

std::string violation_of(ModelMachine machine, ModelSide user, ModelSide owner) {
  return Explorer(machine, std::move(user), std::move(owner)).violation();
}

}  // namespace

TEST_CASE("revocable access: no order of steps and of stores lets both sides have the memory") {
  for (const Stores stores : {Stores::kAtOnce, Stores::kInOrder, Stores::kInAnyOrder}) {
    INFO("stores " << static_cast<int>(stores));
    Explorer writing({stores}, writes_twice, takes_back<true>), reading({stores}, reads_twice<false>, takes_back<true>);
    for (Explorer* explorer : {&writing, &reading}) {
      CHECK(explorer->violation() == "");
      // Access was never refused, or once, or twice; the owner got the memory, or looked too few times.
      CHECK(explorer->ends() == std::set<std::pair<int, int>>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}});
    }
    // A reader that was interrupted knows that it has read something else.
    CHECK(violation_of({stores}, reads_twice<true>, takes_back<false>) == "");
    CHECK(contains(violation_of({stores}, reads_twice<false>, takes_back<false>), "read after"));
  }
}

TEST_CASE("revocable access: the model sees what goes wrong without the fences, or without the release") {
  for (const Stores stores : {Stores::kInOrder, Stores::kInAnyOrder}) {
    const ModelMachine without{stores, false};
    CHECK(contains(violation_of(without, writes_twice, takes_back<true>), "written after"));
    CHECK(contains(violation_of(without, reads_twice<false>, takes_back<true>), "read after"));
  }
  const ModelMachine in_order{Stores::kInOrder, true, false}, scattered{Stores::kInAnyOrder, true, false};
  CHECK(violation_of(in_order, writes_twice, takes_back<true>) == "");
  CHECK(contains(violation_of(scattered, writes_twice, takes_back<true>), "written after"));
  CHECK(violation_of({Stores::kAtOnce, false, false}, writes_twice, takes_back<true>) == "");
}
