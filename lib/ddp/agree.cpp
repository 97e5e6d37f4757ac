#include "agree.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tutti::ddp {
namespace {

// An error as a message between ranks. Longer sentences are cut.
struct Notice {
  int32_t code = 0;
  std::array<char, 1020> sentence{};
};

Status hear_from(const Group& group, int rank, const Status& mine) {
  Notice notice;
  if (group.rank == rank) {
    notice.code = mine.error().code;
    mine.error().message.copy(notice.sentence.data(), notice.sentence.size() - 1);
  }
  if (Status s = library(tuttiBcast(&notice, sizeof notice, tuttiUint8, rank, group.comm, nullptr)); !s) return s;
  return Error{static_cast<tuttiResult_t>(notice.code), text("rank %d: %s", rank, notice.sentence.data())};
}

// "ranks 0, 2 have X; rank 1 has Y", the ranks with equal texts together, rank 0's first.
std::string who_has_what(const std::vector<std::string>& texts) {
  std::vector<std::string> seen;
  std::string out;
  for (const std::string& what : texts) {
    if (std::find(seen.begin(), seen.end(), what) != seen.end()) continue;
    seen.push_back(what);
    std::string ranks;
    int n = 0;
    for (size_t r = 0; r < texts.size(); r++) {
      if (texts[r] != what) continue;
      ranks += (n++ > 0 ? ", " : "") + std::to_string(r);
    }
    out += (out.empty() ? "rank" : "; rank") + std::string(n > 1 ? "s " : " ") + ranks + (n > 1 ? " have " : " has ") +
           what;
  }
  return out;
}

// The error for line `index`, which differs between ranks.
Status disagreement(const Group& group, const std::vector<std::string>& lines, size_t index) {
  std::array<char, 1024> mine{};  // room for a name and a shape
  const std::string line = index < lines.size() ? lines[index] : "nothing in its place";
  line.copy(mine.data(), mine.size() - 1);
  std::vector<char> all(mine.size() * static_cast<size_t>(group.size));
  const auto gathered = tuttiAllGather(mine.data(), all.data(), mine.size(), tuttiUint8, group.comm, nullptr);
  if (Status s = library(gathered); !s) return s;
  std::vector<std::string> texts;
  for (size_t at = 0; at < all.size(); at += mine.size()) texts.emplace_back(&all[at]);
  return invalid_usage("the ranks' models or options differ: " + who_has_what(texts) +
                       "; give all ranks the same parameters, buffers and options");
}

}  // namespace

Status find_group(tuttiComm_t comm, Group* group) {
  group->comm = comm;
  if (Status s = library(tuttiCommUserRank(comm, &group->rank)); !s) return s;
  return library(tuttiCommCount(comm, &group->size));
}

Status make_twin(tuttiComm_t comm, HostTwin* twin) {
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.cudaDevice = -1;
  config.blocking = 1;
  tuttiComm_t made = nullptr;
  Status split = library(tuttiCommSplit(comm, 0, 0, &made, &config));
  twin->reset(made);
  return split;
}

// Finalizes first, because a peer may still need this rank's connections.
void EndTwin::operator()(tuttiComm_t comm) const {
  static_cast<void>(tuttiCommFinalize(comm));
  static_cast<void>(tuttiCommDestroy(comm));
}

Status agree(const Group& group, const Status& mine, std::vector<int32_t>* flags) {
  std::vector<int32_t> words = {mine ? 0 : group.rank + 1};
  if (flags != nullptr) words.insert(words.end(), flags->begin(), flags->end());
  const auto reduced =
      tuttiAllReduce(words.data(), words.data(), words.size(), tuttiInt32, tuttiMax, group.comm, nullptr);
  if (Status s = library(reduced); !s) return s;
  if (flags != nullptr) std::copy(words.begin() + 1, words.end(), flags->begin());
  return words[0] == 0 ? Status() : hear_from(group, words[0] - 1, mine);
}

Status gather(const Group& group, const std::vector<uint64_t>& mine, std::vector<uint64_t>* all) {
  all->resize(mine.size() * static_cast<size_t>(group.size));
  return library(tuttiAllGather(mine.data(), all->data(), mine.size(), tuttiUint64, group.comm, nullptr));
}

Status same_lines(const Group& group, const std::vector<std::string>& lines) {
  std::vector<uint64_t> counts;
  if (Status s = gather(group, {lines.size()}, &counts); !s) return s;
  // Ranks with fewer lines fill up with zeros.
  std::vector<uint64_t> mine(*std::max_element(counts.begin(), counts.end())), all;
  for (size_t i = 0; i < lines.size(); i++) mine[i] = hash_bytes(lines[i].data(), lines[i].size());
  if (Status s = gather(group, mine, &all); !s) return s;
  for (size_t i = 0; i < mine.size(); i++) {
    bool same = true;
    for (size_t at = i; at < all.size(); at += mine.size()) same &= all[at] == all[i];
    if (!same) return disagreement(group, lines, i);
  }
  return {};
}

Status Attendance::meet(const Group& group, bool follows, bool learns) {
  follows_ = follows;
  anybody_learns_ = learns;
  if (!may_join_) return {};
  constexpr int32_t kAbsent = 0, kPresent = 1, kLearning = 2;
  std::vector<int32_t> ranks(static_cast<size_t>(group.size));
  ranks[static_cast<size_t>(group.rank)] = follows ? kAbsent : learns ? kLearning : kPresent;
  const auto reduced =
      tuttiAllReduce(ranks.data(), ranks.data(), ranks.size(), tuttiInt32, tuttiMax, group.comm, nullptr);
  if (Status s = library(reduced); !s) return s;
  const auto first = std::find_if(ranks.begin(), ranks.end(), [](int32_t state) { return state != kAbsent; });
  anybody_leads_ = first != ranks.end();
  anybody_learns_ = std::find(ranks.begin(), ranks.end(), kLearning) != ranks.end();
  if (anybody_leads_) leader_ = static_cast<int>(first - ranks.begin());
  return {};
}

uint64_t hash_bytes(const void* data, size_t bytes) {
  constexpr uint64_t kPrime = 0x9e3779b97f4a7c15;
  const char* at = static_cast<const char*>(data);
  uint64_t hash = kPrime ^ bytes;
  for (; bytes > 0;) {
    uint64_t word = 0;
    const size_t part = std::min(bytes, sizeof word);
    memcpy(&word, at, part);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
    at += part;
    bytes -= part;
  }
  return hash;
}

}  // namespace tutti::ddp
