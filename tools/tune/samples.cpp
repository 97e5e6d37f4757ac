#include "samples.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace tutti::tune {
namespace {

template <class Enum, class Range, class Name>
bool find_name(const std::string& wanted, const Range& all, Name name, Enum* found) {
  for (const auto each : all) {
    if (wanted != name(each)) continue;
    *found = each;
    return true;
  }
  return false;
}

// Whether the facts are plausible: at least one of everything.
bool is_possible(const Facts& f) {
  constexpr int kMostRanks = 1 << 20;
  return f.n_ranks <= kMostRanks && std::min({f.n_ranks, f.hosts, f.largest_host, f.machine.ranks,
                                              f.machine.usable_cpus, f.machine.cpus, f.racks.n}) > 0;
}

bool read(const nlohmann::json& one, Sample* sample) {
  constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kBroadcast,     Collective::kReduce,
                                         Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll};
  const auto facts = facts_from_text(one.at("facts").get<std::string>());
  if (!facts || !is_possible(*facts)) return false;
  sample->facts = *facts;
  sample->bytes = one.at("bytes").get<uint64_t>();
  sample->ns = one.at("ns").get<double>();
  sample->is_free = one.at("free").get<bool>();
  const auto algo = one.at("algo").get<std::string>();
  sample->algo = algo_named(algo);
  if (sample->algo == Algo::kAuto && algo != algo_name(Algo::kAuto)) return false;
  const auto name_of = [](Collective c) { return traits(c).name; };
  return find_name(one.at("collective").get<std::string>(), kCollectives, name_of, &sample->collective) &&
         sample->ns > 0;
}

}  // namespace

std::string to_json(const std::vector<Sample>& samples) {
  auto all = nlohmann::json::array();
  for (const Sample& s : samples)
    all.push_back({{"facts", to_text(s.facts)},
                   {"collective", traits(s.collective).name},
                   {"bytes", s.bytes},
                   {"algo", algo_name(s.algo)},
                   {"free", s.is_free},
                   {"ns", s.ns}});
  return all.dump(1) + "\n";
}

double rounded(double value) {
  return std::stod(perf::text("%.3g", value));
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<Sample> medians(const std::vector<Sample>& samples) {
  std::vector<Sample> firsts;
  std::map<std::tuple<std::string, Collective, uint64_t, Algo, bool>, std::pair<size_t, std::vector<double>>> times;
  for (const Sample& s : samples) {
    auto& [place, all_ns] = times[{to_text(s.facts), s.collective, s.bytes, s.algo, s.is_free}];
    if (all_ns.empty()) {
      place = firsts.size();
      firsts.push_back(s);
    }
    all_ns.push_back(s.ns);
  }
  for (auto& [operation, measured] : times) {
    const auto& [place, all_ns] = measured;
    firsts[place].ns = median(all_ns);
  }
  return firsts;
}

perf::Status from_json(const std::string& text, const std::string& file, std::vector<Sample>* samples) {
  try {  // the JSON library reports errors by exceptions
    for (const auto& one : nlohmann::json::parse(text)) {
      Sample sample;
      if (!read(one, &sample))
        return perf::usage_error(file + ": a sample makes no sense: " + one.dump().substr(0, 300));
      samples->push_back(sample);
    }
  } catch (const nlohmann::json::exception& e) {
    return perf::usage_error(file + " holds no samples of tutti-tune (--samples writes them): " + e.what());
  }
  return {};
}

}  // namespace tutti::tune
