// Which parameters a step uses: its marks, and what earlier steps say about them.
//
// Threads: both are guarded by the averager's mutex. While tuttiDdpWait ends a step nothing changes here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "buckets.h"
#include "replica.h"

namespace tutti::ddp {

enum class Mark : uint8_t { kNone, kReady, kUnused };

// Which gradients are marked, in which order they were marked, and which buckets are full.
class Marks {
 public:
  explicit Marks(size_t n_params) : used_before_(n_params) {}
  void begin_step(const Buckets& buckets) {
    marks_.assign(used_before_.size(), Mark::kNone);
    order_.clear();
    pending_.clear();
    for (size_t b = 0; b < buckets.size(); b++) pending_.push_back(buckets[b].params.size());
  }

  size_t size() const { return used_before_.size(); }
  Mark operator[](size_t param) const { return marks_[param]; }
  const std::vector<size_t>& order() const { return order_; }
  // Returns the mark that counts: a gradient accumulated without synchronisation is ready, even if unused in this step.
  Mark set(size_t param, Mark kind) {
    order_.push_back(param);
    return marks_[param] = used_before_[param] ? Mark::kReady : kind;
  }
  // One more gradient is in the bucket. Returns whether it was the last one.
  bool fill(size_t bucket) { return --pending_[bucket] == 0; }
  bool is_full(size_t bucket) const { return pending_[bucket] == 0; }
  void fill_all() { std::fill(pending_.begin(), pending_.end(), 0); }

  // A step without synchronisation used `param`; remembered until drop_accumulated().
  void accumulate(size_t param) { used_before_[param] = true; }
  bool has_accumulated(size_t param) const { return used_before_[param]; }
  void drop_accumulated() { used_before_.assign(used_before_.size(), false); }

 private:
  std::vector<Mark> marks_;
  std::vector<size_t> order_;
  std::vector<size_t> pending_;  // by bucket: missing gradients
  std::vector<bool> used_before_;
};

// Which parameters are used by this rank and by any rank, so that gradients nobody uses are left alone. With findUnused
// the ranks exchange this in every step. With staticGraph a rank uses in every step what it used in its own first one,
// and the ranks exchange it once; a rank that joined before its first step learns its graph later than the others.
class Graph {
 public:
  explicit Graph(const tuttiDdpConfig_t& config)
      : is_static_(config.staticGraph != 0), finds_unused_(config.findUnused != 0) {}
  // This rank's graph is static, and not known yet.
  bool learns() const { return is_static_ && never_used_.empty(); }
  bool never_uses(size_t param) const { return !never_used_.empty() && never_used_[param]; }
  Status check(const Replica& replica, size_t param, Mark kind) const {
    if (never_used_.empty() || never_used_[param] == (kind == Mark::kUnused)) return {};
    return invalid_usage(replica.name(param) +
                         (kind == Mark::kReady ? " has a gradient, but had none in the first step"
                                               : " is unused, but was used in the first step") +
                         "; if that changes between steps, set findUnused instead of staticGraph");
  }

  // `learning`: some rank learns its graph in this step.
  void begin_step(bool learning) { tells_ = is_static_ ? learning : finds_unused_; }
  // What this rank tells the others, by parameter; empty if nothing is exchanged in this step. take() gets the maximum.
  std::vector<int32_t> used_here(const Marks& marks) const {
    std::vector<int32_t> used;
    for (size_t i = 0; tells_ && i < marks.size(); i++)
      used.push_back((never_used_.empty() ? marks[i] == Mark::kReady : !never_used_[i]) ? 1 : 0);
    return used;
  }
  void take(const Marks& marks, const std::vector<int32_t>& used, bool follows) {
    if (tells_) used_ = used;
    const bool is_first = learns() && !follows;
    for (size_t i = 0; is_first && i < marks.size(); i++) never_used_.push_back(marks[i] == Mark::kUnused);
  }
  bool is_used(size_t param) const { return used_.empty() || used_[param] != 0; }

 private:
  const bool is_static_, finds_unused_;
  bool tells_ = false;
  std::vector<bool> never_used_;  // by this rank; empty until known
  std::vector<int32_t> used_;     // by any rank
};

}  // namespace tutti::ddp
