#include "comm/link_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "base/log.h"
#include "comm/membership.h"

namespace tutti {
namespace {

// Links that the ranks of a process make at the same time, if few at a time are enough. Each may take four descriptors
// until it is made: both ends' sockets and memory.
constexpr size_t kFewAtOnce = 64;

// Calls visit(name, sends) for each link that the schedule uses.
template <class Visit>
void for_each_link(const Schedule& schedule, Visit&& visit) {
  for (const Lane& lane : schedule.lanes) {
    for (const Step& step : lane.steps.patterns()) {
      if (step.send >= 0) visit(std::pair(step.send, lane.channel), true);
      for_each_sender(schedule, step, [&](int peer) { visit(std::pair(peer, lane.channel), false); });
    }
  }
}

}  // namespace

Link* LinkPool::find(int peer, uint32_t channel, bool sending) {
  auto& links = sending ? sends_ : recvs_;
  const auto found = links.find({peer, channel});
  return found == links.end() ? nullptr : found->second.get();
}

bool LinkPool::keeps_socket(int peer) const {
  const std::vector<int>& here = me_.roster->ranks_of_process;
  return !std::binary_search(here.begin(), here.end(), peer) ||
         std::none_of(endpoints_.begin(), endpoints_.end(), is_shared_memory);
}

size_t LinkPool::sockets_of(const Schedule& schedule) const {
  std::set<Name> out, in;
  for_each_link(schedule, [&](const Name& name, bool sends) {
    if (keeps_socket(name.first)) (sends ? out : in).insert(name);
  });
  return out.size() + in.size();
}

tuttiLinkConfig LinkPool::config_of(const Name& name) const {
  const MessageSizes& sizes = me_.sizes;
  return {sizeof(tuttiLinkConfig), name.first, name.second, sizes.slots, sizes.slot_bytes, sizes.connections};
}

Link& LinkPool::place_in(Links& links, const Name& name) const {
  std::unique_ptr<Link>& place = links[name];
  if (!place) place = std::make_unique<Link>(&kNoTransport, nullptr, config_of(name));
  return *place;
}

void LinkPool::request(const Schedule& schedule, bool all_at_once, bool delivers) {
  most_at_once_ = all_at_once ? SIZE_MAX : std::max<size_t>(1, kFewAtOnce / me_.roster->ranks_of_process.size());
  for_each_link(schedule, [&](const Name& name, bool sends) {
    if (place_in(sends ? sends_ : recvs_, name).is_made()) return;
    if (sends && std::ranges::find(attempts_, name, &std::pair<Name, LinkAttempt>::first) == attempts_.end())
      attempts_.emplace_back(name, LinkAttempt(config_of(name), (*me_.roster)[name.first].addresses, delivers));
    if (!sends && std::find(awaited_.begin(), awaited_.end(), name) == awaited_.end()) awaited_.push_back(name);
  });
}

// The pause between two looks grows while nothing comes: otherwise a thousand looking ranks do nothing else.
Result<void> LinkPool::connect(const Schedule& schedule, Deadline deadline, const std::function<bool()>& stops,
                               bool delivers) {
  constexpr uint32_t kFirstUs = 50, kLastUs = 20'000;
  request(schedule, false, delivers);
  uint32_t pause_us = kFirstUs;
  while (missing() > 0) {
    TUTTI_TRY_ASSIGN(const bool progress, advance());
    if (stops()) return {};
    if (progress) {
      pause_us = kFirstUs;
      continue;
    }
    if (deadline.passed()) return late();
    poll_sends();  // a peer may not be here yet because a message of this rank's was lost with its connection
    usleep(pause_us);
    pause_us = std::min(2 * pause_us, kLastUs);
  }
  return {};
}

Result<bool> LinkPool::advance() {
  TUTTI_TRY_ASSIGN(bool progress, accept_all());
  size_t under_way = 0;
  for (auto i = attempts_.begin(); i != attempts_.end() && under_way < most_at_once_;) {
    TUTTI_TRY_ASSIGN(const bool ready, i->second.advance(endpoints_));
    if (!ready) {
      ++i;
      ++under_way;
      continue;
    }
    if (!i->second.why_not_shared().empty()) warn_of_detour(i->second);
    Link& place = place_in(sends_, i->first);
    place = i->second.take();
    count(place);
    i = attempts_.erase(i);
    progress = true;
  }
  return progress;
}

Result<bool> LinkPool::accept_all() {
  bool progress = false;
  for (Endpoint& endpoint : endpoints_) {
    for (;;) {
      Link link;
      TUTTI_TRY_ASSIGN(const bool arrived, endpoint.accept(&link));
      if (!arrived) break;
      const Name name{link.peer(), link.config().channel};
      if (link.config().slot_bytes != me_.sizes.slot_bytes) continue;  // not one of this group's
      Link& place = place_in(recvs_, name);
      if (place.is_made()) continue;  // nor is that one
      place = std::move(link);
      count(place);
      incoming_.push_back(&place);
      std::erase(awaited_, name);
      progress = true;
    }
  }
  return progress;
}

void LinkPool::warn_of_detour(const LinkAttempt& link) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  log(LogLevel::kWarn,
      "the link to rank %d, on this host, goes through %s, which is slower, because no memory could be shared: %s; "
      "TUTTI_LOG=info says the same of other links",
      link.peer(), link.transport(), link.why_not_shared().c_str());
}

// A link's failure is left for its next user to find.
void LinkPool::poll_sends() {
  tuttiTransportError ignored{};
  for (auto& [name, link] : sends_) (void)link->poll(&ignored);
}

Result<void> LinkPool::keep_up() {
  const bool lacks_links = missing() > 0;
  const auto advanced = advance();
  if (!advanced && lacks_links) return advanced.error();
  poll_sends();
  constexpr int64_t kEveryNs = 1'000'000'000;
  if (const int64_t now = now_ns(); now - counted_ns_ >= kEveryNs) {
    counted_ns_ = now;
    count_resent();
  }
  return {};
}

void LinkPool::count_resent() {
  std::map<int, uint64_t> all;
  for (auto& [name, link] : sends_)
    if (const uint64_t n = link->state().resent; n != Link::kNotCounted) all[name.first] += n;
  if (all.empty()) return;
  const std::lock_guard lock(held_.mutex);
  held_.resent = std::move(all);
}

std::map<int, uint64_t> LinkPool::resent() const {
  const std::lock_guard lock(held_.mutex);
  return held_.resent;
}

void LinkPool::count(const Link& link) {
  held_.links++;
  if (keeps_socket(link.peer())) held_.sockets++;
  held_.bytes += size_t{link.config().slots} * link.config().slot_bytes;
}

Error LinkPool::late() const {
  std::string missing;
  for (const auto& [name, attempt] : attempts_)
    missing += format("%sto rank %d (%s)", missing.empty() ? "" : ", ", name.first, attempt.transport());
  for (const Name& name : awaited_) missing += format("%sfrom rank %d", missing.empty() ? "" : ", ", name.first);
  return {Code::kTimeout,
          "links were not ready in time (TUTTI_INIT_TIMEOUT or the configuration's initTimeoutSeconds): " + missing};
}

}  // namespace tutti
