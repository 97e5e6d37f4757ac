#include "racks.h"

#include <algorithm>
#include <numeric>

namespace tutti::tune {
namespace {

using perf::Status;

class Search {
 public:
  Search(int n_hosts, const Speed& speed, Racks* found)
      : speed_(speed), found_(*found), left_(static_cast<size_t>(n_hosts)), outside_(left_.size()) {
    std::iota(left_.begin(), left_.end(), 0);
    found_ = {{}, std::vector<double>(left_.size())};
  }

  Status run() {
    const int n = static_cast<int>(left_.size());
    for (int host = 0; host < n && n > 2; host++) {
      double ignored = 0;
      if (Status s = ask(host, (host + 1) % n, &ignored); !s) return s;
    }
    while (!left_.empty())
      if (Status s = take_rack(); !s) return s;
    std::sort(found_.racks.begin(), found_.racks.end());  // independent of which host was fastest
    for (const int host : slow_) {
      const auto by_size = [](const auto& a, const auto& b) { return a.size() < b.size(); };
      std::min_element(found_.racks.begin(), found_.racks.end(), by_size)->push_back(host);
    }
    return {};
  }

 private:
  Status ask(int from, int to, double* fast) {
    if (Status s = speed_(from, to, fast); !s) return s;
    for (const int host : {from, to}) best(host) = std::max(best(host), *fast);
    return {};
  }
  double& best(int host) { return found_.bytes_per_second[static_cast<size_t>(host)]; }
  double& outside(int host) { return outside_[static_cast<size_t>(host)]; }

  // Finds the rack of the fastest remaining host.
  Status take_rack() {
    const auto pivot = std::max_element(left_.begin(), left_.end(), [this](int a, int b) { return best(a) < best(b); });
    const int first = *pivot;
    left_.erase(pivot);
    std::vector<int> near, far;
    std::vector<double> fast(left_.size());
    for (size_t i = 0; i < left_.size(); i++)
      if (Status s = ask(first, left_[i], &fast[i]); !s) return s;
    for (size_t i = 0; i < left_.size(); i++) {
      const int host = left_[i];
      const bool is_near = found_.racks.empty() ? fast[i] >= kAboutAsFast * best(first)
                                                : fast[i] * kAboutAsFast >= std::max(outside(first), outside(host));
      if (!is_near) outside(host) = std::max(outside(host), fast[i]);
      (is_near ? near : far).push_back(host);
    }
    left_ = far;
    if (near.empty() && !found_.racks.empty()) return slow_.push_back(first), Status();
    near.insert(near.begin(), first);
    std::sort(near.begin(), near.end());
    found_.racks.push_back(near);
    return {};
  }

  const Speed& speed_;
  Racks& found_;
  std::vector<int> left_, slow_;
  std::vector<double> outside_;  // by host: the fastest path to a rack that it is not in
};

}  // namespace

double Racks::fastest() const {
  return *std::max_element(bytes_per_second.begin(), bytes_per_second.end());
}

bool Racks::is_slow(int host) const {
  return bytes_per_second[static_cast<size_t>(host)] < kAboutAsFast * fastest();
}

std::vector<std::vector<int>> Racks::fast_hosts() const {
  auto fast = racks;
  const auto is_slow_one = [this](int host) { return is_slow(host); };
  for (std::vector<int>& rack : fast)
    if (!std::all_of(rack.begin(), rack.end(), is_slow_one)) std::erase_if(rack, is_slow_one);
  return fast;
}

Status find_racks(int n_hosts, const Speed& speed, Racks* found) {
  return Search(n_hosts, speed, found).run();
}

}  // namespace tutti::tune
