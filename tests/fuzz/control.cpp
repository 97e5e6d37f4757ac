// What members of a group send over their control connections, fed to the code that reads it, without sockets between
// ranks: frames, agreement, and the ranks' current operations.
#include <optional>

#include "base/bytes.h"
#include "comm/comparison.h"
#include "comm/inquiry.h"
#include "comm/remote_attendants.h"
#include "fuzz.h"
#include "group/council.h"
#include "group/line.h"

namespace tutti {
namespace {

using fuzz::expect;
using fuzz::Input;

constexpr int kRanks = 4;

void check_decision(const Decision& decision) {
  expect(decision.members.size() == decision.votes.size(), "who takes part has a vote");
  expect(std::is_sorted(decision.members.begin(), decision.members.end()), "members come in rising order");
  for (const int rank : decision.members) expect(rank >= 0 && rank < kRanks, "members are ranks");
}

void read_decision(Input& in) {
  const std::string bytes(in.rest());
  const auto decision = Decision::from_bytes(bytes, kRanks);
  if (!decision) return;
  check_decision(*decision);
  expect(decision->to_bytes() == bytes, "a decision is the same after it has travelled");
}

// One rank that calls, leaves and loses others at will, while the others send anything.
void agree(Input& in) {
  const int rank = static_cast<int>(in.below(kRanks));
  std::vector<std::string> sent;
  Council council(rank, kRanks, [&](int to, const std::string& message) {
    expect(to >= 0 && to < kRanks && to != rank, "messages go to other ranks");
    sent.push_back(message);
    return sent.size() % 5 != 0;
  });
  const auto other = [&] { return (rank + 1 + static_cast<int>(in.below(kRanks - 1))) % kRanks; };
  while (!in.done()) {
    const Council::Without without = in.below(2) == 0 ? Council::Without{} : Council::Without{other()};
    switch (in.below(8)) {
      case 0: council.join(without, std::string(in.text(in.byte()))); break;
      case 1: council.leave(without); break;
      case 2: council.lose(other()); break;
      case 3: council.connected(other()); break;
      case 4: council.name_missing(without); break;
      default: {
        const int from = other();
        council.hear(from, std::string(in.text(in.byte())));
      }
    }
    if (const auto result = council.take_result(without)) check_decision(*result);
    for (const int wanted : council.wanted()) expect(wanted != rank, "a rank waits for others");
    expect(council.coordinator(without) <= rank, "the lowest rank leads");
  }
  // What a rank has sent makes sense to the others.
  for (const std::string& message : sent) {
    for (int reader = 0; reader < kRanks; reader++) {
      if (reader == rank) continue;
      Council theirs(reader, kRanks, [](int, const std::string&) { return true; });
      ByteReader r(message);
      r.get<uint32_t>();
      const bool about_reader = r.get<uint32_t>() == 1 && r.get<int32_t>() == reader;
      expect(about_reader || theirs.hear(rank, message), "a council's own messages make sense");
    }
  }
}

// Frames come out as they went in.
void read_line(Input& in) {
  constexpr size_t kMostBytes = 300;
  fuzz::SocketPair sockets;
  Line line(1, std::move(sockets.ours), kMostBytes);
  std::string said, understood;
  for (auto status = FrameReader::Status::kPending; status == FrameReader::Status::kPending;) {
    if (in.done()) sockets.hang_up();
    const std::string_view part = in.text(1 + in.byte());
    sockets.say(part);
    said += part;
    while ((status = line.read()) == FrameReader::Status::kFrame) {
      const std::string bytes = line.in().take_body();
      expect(bytes.size() <= kMostBytes, "no frame is larger than allowed");
      understood += make_frame(line.in().kind(), bytes, line.in().rank());
    }
  }
  expect(said.substr(0, understood.size()) == understood, "what was understood was said");
}

// Statements and questions of ranks that say anything about their current operation.
void compare(Input& in) {
  Recorder recorder;
  Comparison comparison(0, kRanks, recorder);
  Inquiry inquiry(0, kRanks, recorder);
  std::vector<std::vector<int>> hosts;
  for (int r = 0; r < kRanks; r++) hosts.push_back({r});
  RemoteAttendants attendants(0, hosts, recorder);
  while (!in.done()) {
    const auto said_by_other = in.text(in.byte());
    const auto account = inquiry.hear(said_by_other);
    if (account) expect(!account->error, "an account is no error");
    const auto attendance = attendants.hear(said_by_other);
    if (attendance) expect(!attendance->error, "nor is an attendance");
    const auto answer = comparison.hear(said_by_other);
    if (answer && answer->error) expect(!answer->error->message.empty(), "an error has a sentence");
    Standing mine;
    mine.rank = 0;
    mine.begun = in.byte();
    mine.doing = in.below(2) == 0 ? Standing::Doing::kCalls : Standing::Doing::kPasses;
    mine.idle_ns = in.byte() * uint64_t{10'000'000};
    mine.awaited = {{in.below(2) == 0, 1 + static_cast<int>(in.below(kRanks - 1)), {in.byte(), in.byte()}}};
    const auto said = comparison.look(mine);
    expect(said || !said.error().message.empty(), "an error has a sentence");
  }
}

using Target = void (*)(Input&);
constexpr Target kTargets[] = {read_decision, agree, read_line, compare};

std::string counted(const std::string& bytes) {
  return static_cast<char>(bytes.size()) + bytes;
}

std::string council_message(uint32_t kind, const std::string& rest) {
  return fuzz::bytes_of(kind) + fuzz::bytes_of(uint32_t{0}) + rest;
}

// Statements of a rank that waits for a message, and of one that waits for a collective.
std::string some_statements() {
  std::string all;
  for (const Standing::Doing doing : {Standing::Doing::kPasses, Standing::Doing::kCalls, Standing::Doing::kLeft}) {
    const Recorder recorder;
    Comparison peer(1, kRanks, recorder);
    Standing standing;
    standing.rank = 1;
    standing.doing = doing;
    standing.begun = 3;
    standing.call.collective = Collective::kAllReduce;
    standing.call.sequence = 2;
    standing.counts = {{0, {1, 2}}};
    standing.awaited = {{false, 0, {.sequence = 1, .count = 10, .dtype = DataType::kFloat32}}};
    all += counted(peer.farewell(standing)) + std::string(6, '\1');
  }
  return all;
}

}  // namespace
}  // namespace tutti

using namespace tutti;  // NOLINT

std::vector<std::string> fuzz_seeds() {
  Decision decision;
  decision.epoch = 1;
  decision.members = {0, 2};
  decision.votes = {"one", ""};
  const std::string vote = counted("vote"), empty = fuzz::bytes_of(uint32_t{0});
  const std::string state =
      fuzz::bytes_of(uint64_t{1}) + fuzz::bytes_of(uint64_t{0}) + fuzz::bytes_of(uint32_t{1}) + empty;
  const std::string bytes = decision.to_bytes(), length = fuzz::bytes_of(static_cast<uint32_t>(bytes.size()));
  std::string states;
  for (const char from : {'\0', '\1', '\2'}) states += std::string{0, 5, from} + counted(council_message(1, state));
  const std::string join = std::string{0, 0} + vote, lose = {0, 2, 1},
                    summon = counted(council_message(2, fuzz::bytes_of(uint64_t{0})));
  const std::string decided = counted(council_message(3, length + bytes)),
                    known = counted(council_message(4, length + bytes));
  const std::string frame = make_frame(static_cast<FrameKind>(kCouncil), "abc");
  return {'\0' + bytes,
          std::string{1, 0} + join + states,
          std::string{1, 0} + states + join + join + states,
          std::string{1, 2} + join + lose + std::string{0, 5, 1} + summon + std::string{0, 5, 1} + decided,
          std::string{1, 1} + join + std::string{0, 5, 2} + known + std::string{0, 1} + std::string{0, 4},
          '\2' + counted(frame + frame),
          '\3' + some_statements()};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  Input in(data, bytes);
  kTargets[in.below(std::size(kTargets))](in);
  return 0;
}
