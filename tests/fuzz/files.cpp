// Files that others have written: tuning, flight recorders, topologies.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

#include "debug/trace_json.h"
#include "debug/why.h"
#include "fuzz.h"
#include "plan/prices.h"
#include "topology/discover.h"

namespace tutti {
namespace {

using fuzz::expect;
using fuzz::Input;

// An unnamed file, and a path that leads to it.
class File {
 public:
  explicit File(std::string_view bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    expect(static_cast<bool>(fd_), "there is memory for a file");
    expect(::write(fd_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()),
           "a file can be written");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }

 private:
  Fd fd_;
};

void read_prices(Input& in) {
  const auto list = prices_from_text(in.rest(), "a file");
  if (!list) return expect(!list.error().message.empty(), "a file that is refused has a reason");
  const auto again = prices_from_text(to_text(list.value().prices), "the same");
  expect(again && fingerprint(again.value().prices) == fingerprint(list.value().prices),
         "prices survive being written");
}

// A recorder with operations of every kind, as bytes.
std::string genuine_recorder() {
  Recorder recorder;
  for (int kind = 1; kind < kCollectives; kind++) {
    Call call;
    call.sequence = static_cast<uint64_t>(kind);
    call.collective = static_cast<Collective>(kind);
    call.count = 100;
    recorder.begin(call);
    if (kind + 1 < kCollectives) recorder.end();
  }
  const int awaited[] = {1};
  recorder.record_wait(1'000'000'000, awaited);
  std::string bytes(sizeof(TraceMemory), '\0');
  memcpy(bytes.data(), &recorder.memory(), sizeof(TraceMemory));
  constexpr uint64_t kMagic = TraceHeader::kMagic;
  constexpr int32_t kRankAndRanks[] = {0, 4};
  memcpy(bytes.data() + offsetof(TraceHeader, magic), &kMagic, sizeof kMagic);
  memcpy(bytes.data() + offsetof(TraceHeader, rank), kRankAndRanks, sizeof kRankAndRanks);
  return bytes;
}

void read_recorder(Input& in) {
  static const std::string genuine = genuine_recorder();
  std::string bytes = genuine;
  while (!in.done()) {
    // Changes the header and the first operations more often than the others.
    const bool is_near = in.byte() % 8 != 0;
    const size_t at = in.take<uint16_t>() % (is_near ? sizeof(TraceHeader) + 1024 : sizeof(TraceMemory) - 256);
    const std::string_view what = in.text(in.byte());
    bytes.replace(is_near && at >= sizeof(TraceHeader) ? TraceMemory::kHeaderBytes + at - sizeof(TraceHeader) : at,
                  what.size(), what);
  }
  const File file(bytes);
  const auto trace = read_trace(file.path());
  if (!trace) return expect(!trace.error().message.empty(), "a file that is refused has a reason");
  const std::string json = to_json(trace.value());
  expect(!json.empty() && std::none_of(json.begin(), json.end(), [](char c) { return c >= 0 && c < ' ' && c != '\n'; }),
         "JSON has no control characters");
  expect(!place_in_order(trace.value()).empty(), "a rank is somewhere");
  for (const TracedOperation& operation : trace.value().operations) bytes_of(operation.call);
  const auto untouched = read_trace(File(genuine).path());
  expect(static_cast<bool>(untouched), "a recorder's own file can be read");
  const Witnesses witnesses = {{trace.value().rank, {trace.value(), 'S'}}, {1, {untouched.value(), 'S'}}};
  expect(!why(witnesses).empty(), "there is a sentence");
}

void read_topology(Input& in) {
  const File file(in.rest());
  const auto machine = read_machine(file.path());
  if (!machine) expect(!machine.error().message.empty(), "a file that is refused has a reason");
}

using Target = void (*)(Input&);
constexpr Target kTargets[] = {read_prices, read_recorder, read_recorder, read_topology};

std::string patch(uint16_t at, const std::string& what) {
  return '\1' + fuzz::bytes_of(at) + static_cast<char>(what.size()) + what;
}

}  // namespace
}  // namespace tutti

using namespace tutti;  // NOLINT

std::vector<std::string> fuzz_seeds() {
  const std::string xml =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
      "version=\"2.0\">\n"
      "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x3\" complete_cpuset=\"0x3\" allowed_cpuset=\"0x3\" "
      "nodeset=\"0x1\" complete_nodeset=\"0x1\" allowed_nodeset=\"0x1\" gp_index=\"1\">\n"
      "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x3\" complete_cpuset=\"0x3\" nodeset=\"0x1\" "
      "complete_nodeset=\"0x1\" gp_index=\"5\" local_memory=\"1024\"/>\n"
      "<object type=\"PU\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\" "
      "complete_nodeset=\"0x1\" "
      "gp_index=\"2\"/>\n<object type=\"PU\" os_index=\"1\" cpuset=\"0x2\" complete_cpuset=\"0x2\" nodeset=\"0x1\" "
      "complete_nodeset=\"0x1\" gp_index=\"3\"/>\n</object>\n</topology>\n";
  const auto slot = static_cast<uint16_t>(sizeof(TraceHeader) + 64);
  return {'\0' + to_text(built_in_prices()),
          '\0' + std::string("shm.hop = 100\n# a comment\n"),
          '\1' + patch(offsetof(TraceHeader, rank), fuzz::bytes_of(uint64_t{7})),
          '\1' + patch(offsetof(TraceHeader, n_ranks), fuzz::bytes_of(int32_t{0x3e000000})),  // once counted up to that
          '\1' + patch(offsetof(TraceHeader, begun), fuzz::bytes_of(~uint64_t{0})),
          '\1' + patch(offsetof(TraceHeader, host), std::string(200, '"')),
          '\1' + patch(offsetof(TraceHeader, made_ticks), std::string(24, '\x7f')),
          '\1' + patch(slot, std::string(64, '\xff')) + patch(static_cast<uint16_t>(slot + 16), std::string(8, '\xfe')),
          '\1' + patch(offsetof(TraceHeader, has_failed), std::string("\2\0\0\0\0\0\0\0", 8)) +
              patch(offsetof(TraceHeader, error), "rank 1 died"),
          '\3' + xml,
          '\3' + xml.substr(0, xml.rfind("complete_cpuset")) +
              xml.substr(xml.rfind("complete_cpuset") + 22)};  // once crashed hwloc
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  Input in(data, bytes);
  kTargets[in.below(std::size(kTargets))](in);
  return 0;
}
