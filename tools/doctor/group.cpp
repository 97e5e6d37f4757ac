#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/env.h"
#include "base/socket.h"
#include "findings.h"

namespace tutti::doctor {
namespace {

using Level = Finding::Level;

// From 8 bytes, which take the fast path for small ones, to more than one slot.
constexpr size_t kCounts[] = {1, 1000, 300'000};

int64_t value_of(int rank, size_t i) {
  return static_cast<int64_t>(i * 2654435761u) + rank * 1'000'003 + 1;
}

void check_sums(tuttiComm_t comm, int n_ranks, int rank, Trouble* trouble) {
  for (const size_t count : kCounts) {
    std::vector<int64_t> in(count), out(count, -1);
    for (size_t i = 0; i < count; i++) in[i] = value_of(rank, i);
    if (!trouble->take(tuttiAllReduce(in.data(), out.data(), count, tuttiInt64, tuttiSum, comm, nullptr))) return;
    for (size_t i = 0; i < count; i++) {
      int64_t sum = 0;
      for (int r = 0; r < n_ranks; r++) sum += value_of(r, i);
      if (out[i] != sum)
        return trouble->say(format("element %zu of %zu of a sum is %lld instead of %lld", i, count,
                                   static_cast<long long>(out[i]), static_cast<long long>(sum)));
    }
  }
}

// From every rank to every other one, so that each pair must reach each other.
void check_messages(tuttiComm_t comm, int n_ranks, int rank, Trouble* trouble) {
  constexpr size_t kCount = 5000;
  const auto n = static_cast<size_t>(n_ranks);
  std::vector<int64_t> in(n * kCount), out(n * kCount, -1);
  for (size_t i = 0; i < in.size(); i++) in[i] = value_of(rank, i);
  if (!trouble->take(tuttiAlltoAll(in.data(), out.data(), kCount, tuttiInt64, comm, nullptr))) return;
  for (size_t i = 0; i < out.size(); i++) {
    const int from = static_cast<int>(i / kCount);
    const int64_t expected = value_of(from, static_cast<size_t>(rank) * kCount + i % kCount);
    if (out[i] != expected) return trouble->say(format("the data received from rank %d are not what it sent", from));
  }
}

double round_trip_us(tuttiComm_t comm, Trouble* trouble) {
  constexpr int kRounds = 200;
  std::vector<int64_t> times;
  for (int i = 0; i < kRounds; i++) {
    const int64_t begun = now_ns();
    if (!trouble->take(tuttiBarrier(comm, nullptr))) return 0;
    times.push_back(now_ns() - begun);
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return static_cast<double>(times[kRounds / 2]) / 1e3;
}

Finding try_transport(const char* transport) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = transport;
  config.initTimeoutSeconds = config.opTimeoutSeconds = 20;
  tuttiUniqueId id;
  Trouble troubles[2];
  double us = 0;
  if (!troubles[0].take(tuttiGetUniqueId(&id)))
    return {Level::kBad, std::string("data over ") + transport, troubles[0].text(), "see the lines above"};
  const auto be_rank = [&](int rank) {
    Trouble& trouble = troubles[rank];
    tuttiComm_t comm = nullptr;
    if (!trouble.take(tuttiCommInitRankConfig(&comm, 2, id, rank, &config))) return;
    check_sums(comm, 2, rank, &trouble);
    check_messages(comm, 2, rank, &trouble);
    const double mine = round_trip_us(comm, &trouble);
    if (rank == 0) us = mine;
    trouble.take(tuttiCommDestroy(comm));
  };
  std::thread other(be_rank, 1);
  be_rank(0);
  other.join();
  const std::string what = std::string("data over ") + transport;
  for (const Trouble& trouble : troubles)
    if (!trouble.text().empty())
      return {Level::kBad, what, trouble.text(),
              "the lines above show what may be missing; TUTTI_LOG=info shows what was tried"};
  return {Level::kGood, what, format("undamaged; a barrier of two ranks takes %.1f us", us), ""};
}

// Settings that belong to a single rank or host, or name files: tuttiCommInit compares what a tuning file says.
constexpr std::string_view kOwn[] = {
    "TUTTI_RANK",          "TUTTI_SECRET",    "TUTTI_ROOT",         "TUTTI_LOG_FILE",         "TUTTI_LOG",
    "TUTTI_SOCKET_IFNAME", "TUTTI_IB_HCA",    "TUTTI_IB_GID_INDEX", "TUTTI_TRACE_DIR",        "TUTTI_TRACE_FILE",
    "TUTTI_METRICS_FILE",  "TUTTI_TOPO_FILE", "TUTTI_TOPO_DUMP",    "TUTTI_TRACE_ON_SIGTERM", "TUTTI_PORT_RANGE",
    "TUTTI_TUNE_FILE",     "TUTTI_LIBRARY"};

// For compare_settings.
std::string own_settings() {
  std::string text;
  for (const EnvEntry& entry : env_table()) {
    const bool is_own = std::find(std::begin(kOwn), std::end(kOwn), entry.name) != std::end(kOwn);
    if (!is_own) text += std::string(entry.name) + "=" + env_string(entry.name) + "\n";
  }
  return text;
}

std::vector<std::string> gather(tuttiComm_t comm, int n_ranks, const std::string& mine, Trouble* trouble) {
  constexpr size_t kBytes = 16384;
  std::vector<char> padded(mine.begin(), mine.begin() + static_cast<ptrdiff_t>(std::min(mine.size(), kBytes - 1)));
  padded.resize(kBytes);
  const std::vector<char> all = gather(comm, n_ranks, padded, trouble);
  std::vector<std::string> texts;
  for (size_t r = 0; r < static_cast<size_t>(n_ranks); r++) texts.emplace_back(all.data() + r * kBytes);
  return texts;
}

}  // namespace

Findings try_transports() {
  Findings findings;
  for (const char* transport : {"shm", "tcp"}) findings.push_back(try_transport(transport));
  return findings;
}

Place find_place(tuttiComm_t comm) {
  int rank = 0, n_ranks = 0;
  Trouble trouble;
  trouble.take(tuttiCommUserRank(comm, &rank));
  trouble.take(tuttiCommCount(comm, &n_ranks));
  const HostId mine = host_id();
  const std::vector<HostId> hosts = gather(comm, n_ranks, std::vector{mine}, &trouble);
  Place place;
  for (auto host = hosts.begin(); host != hosts.end(); host++)
    place.n_hosts += std::find(hosts.begin(), host, *host) == host;
  place.ranks_here = static_cast<int>(std::count(hosts.begin(), hosts.end(), mine));
  place.is_first_here = std::find(hosts.begin(), hosts.end(), mine) == hosts.begin() + rank;
  const std::vector<Cpus> cpus = gather(comm, n_ranks, std::vector{cpus_of_process()}, &trouble);
  for (size_t r = 0; r < cpus.size(); r++)
    for (size_t i = 0; hosts[r] == mine && i < cpus[r].size(); i++) place.cpus_here[i] |= cpus[r][i];
  return place;
}

Findings look_at_group(tuttiComm_t comm, int n_hosts) {
  int rank = 0, n_ranks = 0;
  Trouble trouble;
  trouble.take(tuttiCommUserRank(comm, &rank));
  trouble.take(tuttiCommCount(comm, &n_ranks));
  Findings findings{compare_settings(gather(comm, n_ranks, own_settings(), &trouble))};
  if (!trouble.text().empty()) findings.clear();  // nothing was compared
  check_sums(comm, n_ranks, rank, &trouble);
  check_messages(comm, n_ranks, rank, &trouble);
  const double us = round_trip_us(comm, &trouble);
  // Each rank tells all others its result.
  Trouble last;
  const auto troubles = gather(comm, n_ranks, trouble.text(), &last);
  trouble.say(last.text());
  for (int r = 0; r < n_ranks; r++)
    if (!troubles[static_cast<size_t>(r)].empty())
      trouble.say(format("rank %d: %s", r, troubles[static_cast<size_t>(r)].c_str()));
  const std::string what = format("data between %d ranks on %d hosts", n_ranks, n_hosts);
  if (trouble.text().empty())
    findings.push_back(
        {Level::kGood, what, format("every pair is connected, undamaged; a barrier takes %.1f us", us), ""});
  else
    findings.push_back({Level::kBad, what, trouble.text(),
                        "TUTTI_LOG=info shows how ranks reach each other; while it hangs, run tutti-trace why"});
  return findings;
}

}  // namespace tutti::doctor
