// Rank 0 of 2 in the middle of an all-reduce whose steps the test chooses, over made-up links.
#pragma once

#include <algorithm>

#include "comm/made_up_link.h"
#include "exec/wait.h"

namespace tutti::test {

inline constexpr uint64_t kElems = 10'000;  // 40 KB: large enough to be exposed or placed
inline constexpr uint32_t kBytes = kElems * sizeof(float);

// One value, in one chunk.
struct Bench {
  MadeUpEnd from, to, also_to;
  Link in = made_up_link(from, 1), out = made_up_link(to, 1), also_out = made_up_link(also_to, 2);
  std::vector<float> input = std::vector<float>(kElems, 3), output = std::vector<float>(kElems, -1),
                     theirs = std::vector<float>(kElems, 4), place = std::vector<float>(kElems, -1);
  Program program;
  Recorder recorder;
  Yielding spins, yields{true};
  BoundCall operation{};

  Bench() {
    program.sizes.slot_bytes = 128 << 10;
    program.workspace.make_room(2);
    operation.call = {.sequence = 7,
                      .count = kElems,
                      .collective = Collective::kAllReduce,
                      .dtype = DataType::kFloat32,
                      .op = RedOp::kSum,
                      .algo = Algo::kRing};
    operation.blocks.uniform_elems = kElems;
    operation.input = input.data();
    operation.output = output.data();
    operation.n_ranks = 2;
    operation.stream_from_bytes = UINT64_MAX;
  }
  void add_lane(const std::vector<BoundStep>& steps) {
    for (const BoundStep& step : steps)
      if (step.send != nullptr &&
          std::find(program.sends.begin(), program.sends.end(), step.send) == program.sends.end())
        program.sends.push_back(step.send);
    program.lanes.push_back({steps});
  }
  static BoundStep send(Link& link, Buffer source = Buffer::kInput) {
    BoundStep step;
    step.send = &link;
    step.local.buffer = source;
    return step;
  }
  BoundStep receive() {
    BoundStep step;
    step.recvs = {&in};
    step.local_place = 1;
    step.store.buffer = Buffer::kOutput;
    return step;
  }
  // Adds the message to the input, completes the value and sends it to `link`.
  BoundStep add_up(Link* link) {
    BoundStep step = receive();
    step.local.buffer = Buffer::kInput;
    step.completes = true;
    step.send = link;
    return step;
  }
  tuttiMessage message(const void* data, uint32_t bytes = kBytes) const { return message(data, bytes, operation.call); }
  static tuttiMessage message(const void* data, uint32_t bytes, const Call& call) {
    tuttiMessage made{data, bytes, {}};
    const TagWords words = to_tag(call);
    std::copy(words.begin(), words.end(), made.tag.word);
    return made;
  }
  void let_post(MadeUpEnd& end) {
    end.place = place.data();
    end.place_bytes = kBytes;
  }
};

struct Context final : WaitContext {
  bool ended = false;
  int housekeepings = 0;
  size_t missing = 0;
  std::function<Result<void>()> on_housekeeping;
  std::string why;
  std::vector<Link*> links;
  bool interrupted() override { return ended; }
  Error interruption() override { return {Code::kRemoteError, "the group has ended"}; }
  int wake_fd() override { return -1; }
  const std::vector<Link*>& incoming() override { return links; }
  size_t missing_links() override { return missing; }
  Result<void> housekeeping() override {
    housekeepings++;
    return on_housekeeping ? on_housekeeping() : Result<void>();
  }
  std::string why_waiting() override { return why; }
};

inline std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace tutti::test
