#include "network.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "../perf/buffer.h"
#include "racks.h"
#include "samples.h"

namespace tutti::tune {
namespace {

using perf::Status, perf::now_seconds, perf::text;
using Json = nlohmann::ordered_json;

constexpr size_t kBytes = 2 << 20;  // 17 ms at 1 Gb/s
constexpr int kPasses = 5;          // the first one makes the links, and is not counted

double to_gbit(double bytes_per_second) {
  return bytes_per_second * 8 / 1e9;
}

// One rank's part. Hosts are numbered in the order of their first ranks.
class Survey {
 public:
  explicit Survey(perf::Team& team) : team_(team) {}

  Status run(std::string* json) {
    if (Status s = find_hosts(); !s) return s;
    if (Status s = buffer_.allocate(kBytes, perf::Memory::kHost); !s) return s;
    const Speed speed = [this](int from, int to, double* fast) { return ask({{from, to}}, kBytes, fast); };
    if (Status s = find_racks(n_hosts(), speed, &racks_); !s) return s;
    if (Status s = measure_between(); !s) return s;
    if (team_.rank() != 0) return {};
    show_progress("");
    print();
    *json = describe();
    return {};
  }

 private:
  using Pair = std::pair<int, int>;  // sender, receiver

  int n_hosts() const { return static_cast<int>(leaders_.size()); }

  Status find_hosts() {
    std::vector<perf::RankInfo> infos;
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    if (Status s = team_.gather({static_cast<int>(getpid()), name}, &infos); !s) return s;
    std::map<std::string, int> ranks;
    for (const perf::RankInfo& info : infos) {
      if (ranks[info.host]++ == 0) {
        leaders_.push_back(static_cast<int>(&info - infos.data()));
        names_.push_back(info.host);
      }
      ranks_per_host_ = std::max(ranks_per_host_, ranks[info.host]);
    }
    if (n_hosts() > 1) return {};
    if (team_.rank() != 0) return perf::usage_error("");
    return perf::usage_error("--network measures between hosts, and all ranks are on " + names_[0] +
                             ": start it with a launcher on several hosts, whose names differ");
  }

  // Sends data from one host to another and a word back, for all pairs concurrently: all bytes over the time of the
  // slowest. All ranks take part, so that all of them have the result.
  Status ask(const std::vector<Pair>& pairs, size_t bytes, double* bytes_per_second) {
    show_progress(names_[static_cast<size_t>(pairs[0].first)]);
    std::vector<double> seconds(1);
    for (int turn = 0; turn < kPasses; turn++) {
      if (Status s = team_.barrier(); !s) return s;
      double mine = 0;
      for (const Pair& pair : pairs)
        if (Status s = pass(pair, bytes, &mine); !s) return s;
      if (turn > 0) seconds[0] = turn == 1 ? mine : std::min(seconds[0], mine);
    }
    if (Status s = team_.reduce(&seconds, tuttiMax); !s) return s;
    *bytes_per_second = static_cast<double>(pairs.size() * bytes) / std::max(seconds[0], 1e-9);
    return {};
  }

  Status pass(const Pair& pair, size_t bytes, double* seconds) {
    const int sender = leaders_[static_cast<size_t>(pair.first)], receiver = leaders_[static_cast<size_t>(pair.second)];
    if (team_.rank() != sender && team_.rank() != receiver) return {};
    const bool sends = team_.rank() == sender;
    const int peer = sends ? receiver : sender;
    const double begin = now_seconds();
    for (const bool is_first : {true, false}) {
      const size_t n = is_first ? bytes : 1;
      const tuttiResult_t result = sends == is_first
                                       ? tuttiSend(buffer_.data(), n, tuttiUint8, peer, team_.comm(), nullptr)
                                       : tuttiRecv(buffer_.data(), n, tuttiUint8, peer, team_.comm(), nullptr);
      if (result != tuttiSuccess) return perf::library_error("tuttiSend or tuttiRecv", result, team_.comm());
    }
    if (sends) *seconds = now_seconds() - begin;
    return {};
  }

  // The bandwidth that a rack's hosts share, and the latency of a word.
  Status measure_between() {
    const auto racks = racks_.fast_hosts();
    double fast = 0;
    for (size_t r = 0; r < racks.size() && racks.size() > 1; r++) {
      const auto &from = racks[r], &to = racks[(r + 1) % racks.size()];
      std::vector<Pair> pairs;
      for (size_t i = 0; i < std::min(from.size(), to.size()); i++) pairs.emplace_back(from[i], to[i]);
      if (Status s = ask(pairs, kBytes, &fast); !s) return s;
      rack_bytes_per_second_ = r == 0 ? fast : std::min(rack_bytes_per_second_, fast);
    }
    const int first = racks[0][0];
    if (Status s = latency(first, racks[0].size() > 1 ? racks[0][1] : racks[1][0], &latency_us_); !s) return s;
    rack_latency_us_ = latency_us_;
    return racks.size() > 1 ? latency(first, racks[1][0], &rack_latency_us_) : Status();
  }

  Status latency(int from, int to, double* us) {
    constexpr int kTimes = 5;  // with kPasses each
    for (int i = 0; i < kTimes; i++) {
      double fast = 0;
      if (Status s = ask({{from, to}}, 1, &fast); !s) return s;
      const double here = 1e6 / fast / 2;
      *us = i == 0 ? here : std::min(*us, here);
    }
    return {};
  }

  double speed_of(int host) const { return racks_.bytes_per_second[static_cast<size_t>(host)]; }

  void print() const {
    printf("# %d hosts in %zu %s\n", n_hosts(), racks_.racks.size(), racks_.racks.size() == 1 ? "rack" : "racks");
    printf("# %4s  %-32s %10s\n", "rack", "host", "Gb/s");
    for (size_t r = 0; r < racks_.racks.size(); r++)
      for (const int host : racks_.racks[r])
        printf("  %4zu  %-32s %10.3f%s\n", r, names_[static_cast<size_t>(host)].c_str(), to_gbit(speed_of(host)),
               racks_.is_slow(host) ? "  slow" : "");
    printf("# %.0f us within a rack", latency_us_);
    if (racks_.racks.size() > 1)
      printf(", %.0f us to another one; a rack has %.3f Gb/s to another one", rack_latency_us_,
             to_gbit(rack_bytes_per_second_));
    printf("\n");
  }

  std::string describe() const {
    size_t most = 0;
    for (const auto& rack : racks_.racks) most = std::max(most, rack.size());
    Json hosts = Json::array(), exceptions = Json::array();
    for (const auto& rack : racks_.racks)
      for (size_t i = 0; i < most; i++) {
        const bool is_there = i < rack.size();
        hosts.push_back(is_there ? names_[static_cast<size_t>(rack[i])] : "");
        if (is_there && racks_.is_slow(rack[i]))
          exceptions.push_back({{"host", hosts.size() - 1}, {"gbit_per_s", rounded(to_gbit(speed_of(rack[i])))}});
      }
    Json file = {{"name", "measured by tutti-tune; what is within a host is a round figure"},
                 {"racks", racks_.racks.size()},
                 {"hosts_per_rack", most},
                 {"ranks_per_host", ranks_per_host_},
                 {"hosts", hosts},
                 {"local", {{"gbit_per_s", 100}, {"latency_us", 1}}},
                 {"nic", {{"gbit_per_s", rounded(to_gbit(racks_.fastest()))}, {"latency_us", rounded(latency_us_)}}}};
    if (racks_.racks.size() > 1)
      file["rack"] = {{"gbit_per_s", rounded(to_gbit(rack_bytes_per_second_))},
                      {"latency_us", rounded(std::max(rack_latency_us_ - latency_us_, 0.0))}};
    file["exceptions"] = exceptions;
    return file.dump(2) + "\n";
  }

  void show_progress(const std::string& host) const {
    if (team_.rank() != 0 || !isatty(STDERR_FILENO)) return;
    fprintf(stderr, host.empty() ? "\r\033[K" : "\r\033[Kmeasuring the network of %s ...", host.c_str());
    fflush(stderr);
  }

  perf::Team& team_;
  perf::Buffer buffer_;
  std::vector<int> leaders_;  // the first ranks of hosts
  std::vector<std::string> names_;
  int ranks_per_host_ = 1;
  Racks racks_;
  double rack_bytes_per_second_ = 0, latency_us_ = 0, rack_latency_us_ = 0;
};

}  // namespace

Status measure_network(perf::Team& team, std::string* json) {
  return Survey(team).run(json);
}

}  // namespace tutti::tune
