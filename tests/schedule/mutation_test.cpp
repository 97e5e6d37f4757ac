// Mutation: every right schedule must be refused once it is damaged in one place. All operators here are harmful
// wherever they apply, so none may pass.
#include "collectives.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

using Random = std::mt19937;

uint32_t below(Random& random, size_t bound) {
  return static_cast<uint32_t>(random() % bound);
}

struct Subject {
  std::vector<Schedule> schedules;
  CheckOptions options;
  std::string name;
};

Subject random_subject(Random& random) {
  const Builder& builder = kBuilders[below(random, std::size(kBuilders))];
  const int n = 2 + static_cast<int>(below(random, 8));
  const uint32_t lanes = 1 + below(random, 3);
  Subject subject;
  subject.options.goal = builder.goal;
  subject.options.rank_order = builder.rank_order();
  subject.options.slots = builder.min_slots + below(random, 3);
  subject.options.rounds = 1 + below(random, 3);
  subject.options.in_place = builder.in_place() && below(random, 2) == 1;
  if (builder.has_root()) subject.options.root = static_cast<int>(below(random, static_cast<size_t>(n)));
  subject.schedules = all_ranks(builder, shuffled_order(n, random()), subject.options.root, lanes);
  subject.name = builder.name + (" n=" + std::to_string(n) + " lanes=" + std::to_string(lanes));
  return subject;
}

// Damages step `at` of `steps`; false if this kind of damage does not apply there.
using Mutate = bool (*)(std::vector<Step>& steps, size_t at, const Subject& subject, Random& random);

bool drop_step(std::vector<Step>& steps, size_t at, const Subject&, Random&) {
  steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(at));
  return true;
}

bool repeat_step(std::vector<Step>& steps, size_t at, const Subject&, Random&) {
  const Step step = steps[at];
  if (step.recv < 0 && step.send < 0) return false;  // a local copy may be repeated
  steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(at), step);
  return true;
}

// Only steps that share a link: other steps may be independent of each other.
bool swap_steps(std::vector<Step>& steps, size_t at, const Subject&, Random& random) {
  const size_t other = below(random, steps.size());
  const bool share_recv = steps[at].recv >= 0 && steps[at].recv == steps[other].recv;
  const bool share_send = steps[at].send >= 0 && steps[at].send == steps[other].send;
  if (at == other || !(share_recv || share_send)) return false;
  std::swap(steps[at], steps[other]);
  return true;
}

bool change_peer(int32_t& peer, const Subject& subject, Random& random) {
  const int other = static_cast<int>(below(random, subject.schedules.size() + 2)) - 1;  // none, any rank, one too many
  if (peer < 0 || peer == other) return false;
  peer = other;
  return true;
}
bool change_recv(std::vector<Step>& steps, size_t at, const Subject& subject, Random& random) {
  return change_peer(steps[at].recv, subject, random);
}
bool change_send(std::vector<Step>& steps, size_t at, const Subject& subject, Random& random) {
  return change_peer(steps[at].send, subject, random);
}

bool change_slice_chunk(Slice& slice, Random& random) {
  const uint32_t chunk = below(random, 22);
  if (slice.buffer == Buffer::kNone || slice.chunk == chunk) return false;
  slice.chunk = chunk;
  return true;
}
bool change_local_chunk(std::vector<Step>& steps, size_t at, const Subject&, Random& random) {
  return change_slice_chunk(steps[at].local, random);
}
bool change_store_chunk(std::vector<Step>& steps, size_t at, const Subject&, Random& random) {
  return change_slice_chunk(steps[at].store, random);
}

bool change_before_chunk(std::vector<Step>& steps, size_t at, const Subject&, Random& random) {
  return change_slice_chunk(steps[at].before, random);
}
bool change_chunk(std::vector<Step>& steps, size_t at, const Subject&, Random& random) {
  const uint32_t chunk = below(random, 22);
  if (steps[at].chunk == chunk) return false;
  steps[at].chunk = chunk;
  return true;
}

bool change_buffer(Slice& slice, Random& random) {
  const auto buffer = static_cast<Buffer>(below(random, 5));
  if (slice.buffer == Buffer::kNone || slice.buffer == buffer) return false;
  slice.buffer = buffer;
  return true;
}
bool change_local_buffer(std::vector<Step>& steps, size_t at, const Subject& subject, Random& random) {
  const Buffer was = steps[at].local.buffer;
  if (!change_buffer(steps[at].local, random)) return false;
  // In an all-gather, rank 0 has the same data in in[c] and out[c]; so has the root of a broadcast, except for out[c]
  // before it is written.
  const auto is_user = [](Buffer buffer) { return buffer == Buffer::kInput || buffer == Buffer::kOutput; };
  const bool is_written = was == Buffer::kOutput || subject.options.in_place;
  const bool has_same =
      subject.options.goal == Goal::kAllGather || (subject.options.goal == Goal::kBroadcast && is_written);
  return !has_same || !is_user(was) || !is_user(steps[at].local.buffer);
}
bool change_store_buffer(std::vector<Step>& steps, size_t at, const Subject&, Random& random) {
  return change_buffer(steps[at].store, random);
}

bool change_before_buffer(std::vector<Step>& steps, size_t at, const Subject&, Random& random) {
  return change_buffer(steps[at].before, random);
}
// Builders use `before` only where the order matters; else all orders give the same sum, or it is the ranks' order.
bool swap_operands(std::vector<Step>& steps, size_t at, const Subject&, Random&) {
  if (steps[at].before.buffer == Buffer::kNone) return false;
  std::swap(steps[at].before, steps[at].local);
  return true;
}

bool flip_completes(std::vector<Step>& steps, size_t at, const Subject&, Random&) {
  steps[at].completes = !steps[at].completes;
  return true;
}

// At a random step of a random lane of a random rank.
bool mutate_somewhere(Subject& subject, Mutate mutate, Random& random) {
  std::vector<Lane>& lanes = subject.schedules[below(random, subject.schedules.size())].lanes;
  if (lanes.empty()) return false;
  Steps& whole = lanes[below(random, lanes.size())].steps;
  std::vector<Step> steps(whole.begin(), whole.end());
  if (!mutate(steps, below(random, steps.size()), subject, random)) return false;
  whole = Steps(std::span<const Step>(steps));
  return true;
}

}  // namespace

TEST_CASE("mutation: damaged schedules are refused, and the place is named") {
  struct Operator {
    const char* name;
    Mutate mutate;
  };
  const Operator op = GENERATE(
      Operator{"drop a step", drop_step}, Operator{"repeat a step", repeat_step}, Operator{"swap steps", swap_steps},
      Operator{"change recv", change_recv}, Operator{"change send", change_send},
      Operator{"change local chunk", change_local_chunk}, Operator{"change store chunk", change_store_chunk},
      Operator{"change local buffer", change_local_buffer}, Operator{"change store buffer", change_store_buffer},
      Operator{"flip completes", flip_completes}, Operator{"change before chunk", change_before_chunk},
      Operator{"change before buffer", change_before_buffer}, Operator{"change chunk", change_chunk},
      Operator{"swap operands", swap_operands});
  Random random(20240601);
  const int kWanted = kSanitized ? 50 : 2000;
  for (int done = 0; done < kWanted;) {
    Subject subject = random_subject(random);
    INFO(op.name << ", " << subject.name << " slots=" << subject.options.slots << " rounds=" << subject.options.rounds
                 << " in_place=" << subject.options.in_place);
    const std::vector<Schedule> whole = subject.schedules;
    if (!mutate_somewhere(subject, op.mutate, random)) continue;
    done++;
    REQUIRE(verdict(whole, subject.options) == "");
    const std::string text = verdict(subject.schedules, subject.options);
    REQUIRE(text.find("rank ") != std::string::npos);
  }
}

TEST_CASE("mutation: a lane on another channel is refused") {
  Random random(7);
  const int kWanted = kSanitized ? 50 : 1000;
  for (int done = 0; done < kWanted;) {
    Subject subject = random_subject(random);
    std::vector<Lane>& lanes = subject.schedules[below(random, subject.schedules.size())].lanes;
    if (lanes.empty()) continue;
    lanes[below(random, lanes.size())].channel += 1 + below(random, 5);
    done++;
    INFO(subject.name);
    REQUIRE(verdict(subject.schedules, subject.options).find("rank ") != std::string::npos);
  }
}
