// Queue pairs that fail one after the other, at random points, while messages are in flight.
#include <dlfcn.h>

#include <map>
#include <memory>

#include "traffic.h"
#include "transports/verbs/port.h"

using namespace tutti;
using namespace tutti::test;

namespace {

// After a random number of further writes, up to `most_writes`, the queue pair that was just used fails, with
// everything that it has in flight.
struct Saboteur {
  int left = 0;
  uint64_t writes = 0, next = 0, seed = 1, most_writes = 40;

  void start(int n, uint64_t most = 40) {
    left = n;
    most_writes = most;
    next = writes + 1 + mix(++seed) % most_writes;
  }
  void look(ibv_qp* pair) {
    if (++writes < next || left == 0) return;
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    if (ibv_modify_qp(pair, &attributes, IBV_QP_STATE) == 0) start(left - 1, most_writes);
  }
} saboteur;

int (*real_post)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);

std::map<ibv_qp*, uint64_t> posts;  // per existing queue pair
size_t n_made = 0;                  // queue pairs made so far

int post(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
  const int result = real_post(pair, request, bad);
  posts[pair]++;
  saboteur.look(pair);
  return result;
}

// Like Sender, but exposes what it can, from memory that is overwritten as soon as it is given back.
class Exposer final : public Side {
 public:
  Exposer(Link& link, const Traffic& traffic)
      : Side(link, traffic), registration_(SharedMemory::add(data_.data(), data_.size()).value()->id) {}
  ~Exposer() override { SharedMemory::remove(registration_); }
  bool step() override {
    // Not at each step: asking polls, which frees the last used queue pair again, so that others stay idle.
    if (used_ == kBuffers && link_.unsent() == 0) used_ = 0;
    void* slot = next_ < traffic_.messages ? link_.acquire() : nullptr;
    if (slot == nullptr) return poll_link();
    const bool exposes = used_ < kBuffers && mix(next_) % 4 != 0;
    char* data = exposes ? &data_[used_ * traffic_.max_bytes] : static_cast<char*>(slot);
    traffic_.fill(next_, data);
    if (exposes && link_.publish(data, traffic_.bytes_of(next_), traffic_.tag_of(next_))) {
      used_++;
    } else {
      if (exposes) traffic_.fill(next_, slot);
      link_.publish(traffic_.bytes_of(next_), traffic_.tag_of(next_));
    }
    next_++;
    return true;
  }
  bool done() override { return next_ == traffic_.messages && link_.unsent() == 0; }
  bool waits_for_slot() const override { return true; }

 private:
  static constexpr size_t kBuffers = 8;
  std::vector<char> data_ = std::vector<char>(kBuffers * traffic_.max_bytes);
  uint64_t registration_;
  size_t used_ = 0;
};

}  // namespace

// Interposed before the library's function, to replace the device's function for posting.
extern "C" ibv_qp* ibv_create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  const auto next = reinterpret_cast<decltype(&ibv_create_qp)>(dlsym(RTLD_NEXT, "ibv_create_qp"));
  auto& ops = domain->context->ops;
  if (ops.post_send != post) real_post = std::exchange(ops.post_send, post);
  ibv_qp* pair = next(domain, attributes);
  posts[pair] = 0;
  n_made++;
  return pair;
}
extern "C" int ibv_destroy_qp(ibv_qp* pair) {
  const auto next = reinterpret_cast<decltype(&ibv_destroy_qp)>(dlsym(RTLD_NEXT, "ibv_destroy_qp"));
  posts.erase(pair);
  return next(pair);
}

TEST_CASE("queue pairs fail: every message arrives, once and in order; with the last one the link fails", "[device]") {
  setenv("TUTTI_IB_QPS", "4", 1);
  uint64_t placed = 0;
  int failures = 0;
  for (uint64_t round = 0; round < times(400); round++) {
    Pair p = make_pair(find_transports("verbs").value()[0], Ask{1, 0, 4, 16 << 10});
    Traffic traffic;
    traffic.seed = round + 1;
    const bool is_calm = round % 8 == 0;  // the receiver is early, so that its wishes matter
    traffic.messages = is_calm ? 120 : 400;
    traffic.max_bytes = 16 << 10;
    Exposer sender(p.out, traffic);
    Receiver receiver(p.in, traffic);
    const int most = round % 4 == 3 ? 100 : 3;  // each port has at least that many queue pairs
    saboteur.start(most, most == 3 ? 40 : 3);   // with 100, all fail before any is replaced
    const Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
    const auto trouble = [&] { return sender.trouble() + receiver.trouble(); };
    while (!(sender.done() && receiver.done()) && trouble().empty() && !deadline.passed()) {
      sender.step();
      receiver.step();
      if (!is_calm) continue;
      for (int i = 0; i < 100 && receiver.count() < sender.count(); i++) usleep(20), receiver.step();
      receiver.step();
      usleep(50);
    }
    CAPTURE(round, sender.count(), receiver.count());
    CHECK_FALSE(deadline.passed());
    CHECK((most == 3 || saboteur.left < 100));
    CHECK(trouble().empty() == (most == 3));
    if (most == 3) CHECK(trouble() == "");
    if (most == 100) CHECK(contains(trouble(), "verbs link with rank"));
    failures += most - saboteur.left;
    placed += receiver.placed();
    saboteur.left = 0;
  }
  CHECK(failures > 0);
  CHECK(placed > 0);
  unsetenv("TUTTI_IB_QPS");
}

TEST_CASE("a link uses every port, however many queue pairs it is to have on each", "[device]") {
  const Setting many("TUTTI_IB_QPS", "8");
  auto ports = verbs::Port::open_all();
  REQUIRE(ports);
  posts.clear();
  Pair p = make_pair(find_transports("verbs").value()[0]);
  std::map<std::string, size_t> of_device;
  for (const auto& [pair, n] : posts) of_device[ibv_get_device_name(pair->context->device)]++;
  CHECK(of_device.size() == ports.value().size());  // Soft-RoCE devices have one port each
  CHECK(posts.size() == 2 * verbs::kMaxQueues);
}

TEST_CASE("queue pairs that have failed are made again and carry messages, as often as they fail", "[device]") {
  setenv("TUTTI_IB_QPS", "2", 1);
  posts.clear();
  Pair p = make_pair(find_transports("verbs").value()[0], Ask{1, 0, 4, 16 << 10});
  const size_t n_pairs = posts.size();
  n_made = n_pairs;
  Traffic traffic;
  traffic.messages = UINT64_MAX;
  traffic.max_bytes = 16 << 10;
  Exposer sender(p.out, traffic);
  Receiver receiver(p.in, traffic);
  const Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
  const auto go_on_until = [&](auto&& done) {
    while (!done() && (sender.trouble() + receiver.trouble()).empty() && !deadline.passed()) {
      sender.step();
      receiver.step();
    }
  };
  // The sender's pairs, and the one that its receiver uses for its wishes.
  const auto all_at_work = [&] {
    return std::count_if(posts.begin(), posts.end(), [](const auto& of_pair) { return of_pair.second > 20; }) >
           static_cast<long>(n_pairs / 2);
  };
  go_on_until(all_at_work);
  for (size_t round = 1; round <= 3; round++) {
    saboteur.start(1);
    go_on_until([&] { return n_made == n_pairs + 2 * round && all_at_work(); });
    CAPTURE(round);
    CHECK(n_made == n_pairs + 2 * round);
    CHECK(posts.size() == n_pairs);
    CHECK(sender.trouble() + receiver.trouble() == "");
    CHECK_FALSE(deadline.passed());
    saboteur.left = 0;
  }
  unsetenv("TUTTI_IB_QPS");
}

TEST_CASE("who waits for one link is told that another one has failed, and that its rank is to blame", "[device]") {
  const tuttiTransport* verbs = find_transports("verbs").value()[0];
  auto a = open_endpoint(verbs, 0, 3), b = open_endpoint(verbs, 1, 3), c = open_endpoint(verbs, 2, 3);
  REQUIRE((a && b && c));
  Link from_b, from_c, b_out, c_out;
  REQUIRE((join(b.value(), Ask{0}, a.value(), &b_out, &from_b) && join(c.value(), Ask{0}, a.value(), &c_out, &from_c)));
  REQUIRE(c_out.acquire() != nullptr);
  c_out.publish(0, tuttiTag{});
  tuttiMessage message{};
  REQUIRE(until([&] { return poll_once(c_out) && poll_once(from_c) && from_c.peek(&message); }));
  from_c.release();
  saboteur.start(100, 1);  // whichever write reveals it
  tuttiWait wait;
  (void)from_c.wait_begin(&wait);
  from_c.wait_end();
  Result<void> well;
  CHECK(until([&] {
    (void)poll_once(c_out);
    return !(well = is_well(from_b));
  }));
  saboteur.left = 0;
  REQUIRE_FALSE(well);
  CHECK(well.error().culprit_rank == 2);
  CHECK(contains(well.error().message, "verbs link with rank 2"));
}
