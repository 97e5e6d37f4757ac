// quantised DEVICE RATIO BYTES...: all-reduces of that many bytes of floats, alternately as floats, as int8 and as e4m3
// in blocks of 128, on ranks from a launcher's environment. Rank 0 prints the median times and the bytes that the
// device sent for each, and all ranks fail if int8 sends more than RATIO times as much as floats.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace {

constexpr size_t kBlockElems = 128;
constexpr int kRounds = 9;

[[noreturn]] void die(const char* what) {
  fprintf(stderr, "quantised: %s: %s\n", what, tuttiGetLastError(nullptr));
  exit(1);
}

// Measurements of one way to sum.
struct Way {
  const char* name;
  tuttiDataType_t wire;  // tuttiFloat32: not quantised
  std::vector<double> us = {};
  double sent_bytes = 0;

  double median_us() {
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }
};

double sent_by(const std::string& device) {
  double bytes = 0;
  if (!(std::ifstream("/sys/class/net/" + device + "/statistics/tx_bytes") >> bytes)) die("tx_bytes cannot be read");
  return bytes;
}

tuttiResult_t sum(Way& way, const std::vector<float>& in, std::vector<float>& out, tuttiComm_t comm) {
  if (way.wire == tuttiFloat32)
    return tuttiAllReduce(in.data(), out.data(), in.size(), tuttiFloat32, tuttiSum, comm, nullptr);
  return tuttiAllReduceQuantized(in.data(), out.data(), in.size(), tuttiFloat32, tuttiSum, way.wire, kBlockElems,
                                 nullptr, comm, nullptr);
}

void measure(Way& way, const std::string& device, const std::vector<float>& in, std::vector<float>& out,
             tuttiComm_t comm, bool counts) {
  if (tuttiBarrier(comm, nullptr) != tuttiSuccess) die("barrier");
  const double sent = sent_by(device);
  const auto begin = std::chrono::steady_clock::now();
  if (sum(way, in, out, comm) != tuttiSuccess) die(way.name);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  if (tuttiBarrier(comm, nullptr) != tuttiSuccess) die("barrier");
  if (!counts) return;
  way.us.push_back(took.count());
  way.sent_bytes += sent_by(device) - sent;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string device = argv[1];
  const double most = atof(argv[2]);
  tuttiComm_t comm = nullptr;
  int rank = 0, status = 0;
  if (tuttiCommInitFromEnv(&comm, nullptr) != tuttiSuccess || tuttiCommUserRank(comm, &rank) != tuttiSuccess)
    die("creation");
  if (rank == 0)
    printf("%10s %10s %10s %10s %8s %8s %10s %10s\n", "bytes", "float us", "int8 us", "e4m3 us", "int8 x", "e4m3 x",
           "int8 sent", "e4m3 sent");
  for (int i = 3; i < argc; i++) {
    const size_t elems = strtoull(argv[i], nullptr, 10) / sizeof(float);
    std::vector<float> in(elems, 1.0f), out(elems);
    Way ways[] = {{"float", tuttiFloat32}, {"int8", tuttiInt8}, {"e4m3", tuttiFloat8e4m3}};
    for (int round = -2; round < kRounds; round++)
      for (Way& way : ways) measure(way, device, in, out, comm, round >= 0);
    const double whole_us = ways[0].median_us(), int8_us = ways[1].median_us(), e4m3_us = ways[2].median_us();
    const double int8_sent = ways[1].sent_bytes / ways[0].sent_bytes,
                 e4m3_sent = ways[2].sent_bytes / ways[0].sent_bytes;
    if (rank == 0)
      printf("%10zu %10.0f %10.0f %10.0f %8.2f %8.2f %10.3f %10.3f\n", elems * sizeof(float), whole_us, int8_us,
             e4m3_us, whole_us / int8_us, whole_us / e4m3_us, int8_sent, e4m3_sent);
    if (int8_sent > most) status = 1;
  }
  if (tuttiCommDestroy(comm) != tuttiSuccess) die("destroy");
  return status;
}
