#include <sys/epoll.h>

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "transports/verbs/link.h"

namespace tutti::verbs {
namespace {

constexpr int64_t kLookNs = 1'000'000;
// A cable that is plugged in again is back sooner. With another port to go to, there is less to wait for.
constexpr double kLongestDownSeconds = 10, kLongDownSeconds = 2;
// Until a port whose queue pairs end because it goes down says so.
constexpr double kGoingDownSeconds = 0.05;

}  // namespace

// One queue of completions for each port's device.
Result<void> Half::open_completions(uint32_t most) {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return system_error("creating a descriptor to wait for completions (see ulimit -n)", errno);
  for (const auto& port : hub_.ports) {
    ibv_cq* queue = ibv_create_cq(port->context(), static_cast<int>(most), nullptr, port->channel(), 0);
    if (queue == nullptr)
      return system_error(format("creating a queue of %u completions of %s", most, port->name().c_str()), errno);
    completions_.push_back(queue);
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, port->channel()->fd, &event) != 0)
      return system_error("watching for completions", errno);
  }
  return {};
}

Result<void> Half::watch_socket() {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket_.get(), &event) != 0)
    return system_error("watching a connection", errno);
  return {};
}

Half::~Half() {
  queues_.clear();
  for (ibv_cq* queue : completions_) ibv_destroy_cq(queue);
}

void Half::set_queues(std::vector<Queue> queues) {
  queues_ = std::move(queues);
  states_.resize(queues_.size());
  for (State& state : states_) state.is_proved = true, state.made_ns = now_ns();
}

// What goes to one that is dropped will be given to others when it is closed. One is always open, or the link has
// failed.
size_t Half::least_busy() const {
  const auto load = [&](size_t q) {
    if (!is_usable(q)) return UINT64_MAX - (queues_[q].is_open() ? 1 : 0);
    return queues_[q].under_way() + (states_[q].is_proved ? 0 : UINT32_MAX);
  };
  size_t best = 0;
  for (size_t q = 1; q < queues_.size(); q++)
    if (load(q) < load(best)) best = q;
  return best;
}

void Half::take_completions() {
  poll_completions();
  close_dropped();
}

void Half::poll_completions() {
  for (size_t port = 0; port < completions_.size(); port++) {
    ibv_wc some[16];
    int n = 0;
    do {
      n = ibv_poll_cq(completions_[port], 16, some);
      for (int i = 0; i < n; i++) take(some[i], port);
      if (n < 0) fail("its completions cannot be read");
    } while (n == 16 && !failure_);
  }
}

// Devices number their queue pairs each for itself.
void Half::take(const ibv_wc& completion, size_t port) {
  const auto queue = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& q) {
    return q.is_open() && q.port_index() == port && q.number() == completion.qp_num;
  });
  if (queue == queues_.end()) return;
  const auto index = static_cast<size_t>(queue - queues_.begin());
  State& state = states_[index];
  if (completion.status != IBV_WC_SUCCESS) {
    if (Queue::is_receive(completion)) state.is_flushed = true;
    const std::string why = reason(completion, *queue);
    if (completion.status != IBV_WC_REM_ACCESS_ERR) return drop(index, why);
    // No other port would be let. But a peer that went is a better reason.
    read_socket();
    if (!closed_) fail(queue->port().name() + ": " + why);
    return;
  }
  if (!state.is_proved) prove(index);
  if (!Queue::is_receive(completion)) {
    queue->completed(completion);
    if (Queue::exposes(completion)) on_read(Queue::slot(completion));
    return;
  }
  // Half of them are enough for all that may be under way.
  if (++state.owed >= receives_ / 4) {
    if (!queue->receive(state.owed)) drop(index, "no receives can be posted any more");
    state.owed = 0;
  }
  on_arrival(ntohl(completion.imm_data), completion.byte_len);
}

// Who waits for a message may wait because what was sent before got lost, or what was released, on whichever of the
// endpoint's links.
void Half::look() {
  look_at_socket();
  if (const int64_t now = now_ns(); now < hub_.next_look_ns) return;
  const auto tend_to = [this](Half* other) {
    const Error* error = other == this ? nullptr : other->tend();
    if (error != nullptr && !failure_) failure_ = *error;
  };
  for (const auto& [number, sender] : hub_.senders) tend_to(sender);
  for (const auto& [from, receiver] : hub_.receivers) tend_to(receiver);
  hub_.next_look_ns = now_ns() + kLookNs;
}

const Error* Half::tend() {
  if (!ready_) return nullptr;
  if (!failure_ && !closed_) take_completions();
  if (!failure_ && !closed_) look_at_socket();
  return failure_ && !closed_ ? &*failure_ : nullptr;
}

void Half::look_at_socket() {
  read_socket();
  for (size_t q = 0; q < queues_.size(); q++) {
    if (!is_usable(q)) continue;
    const bool is_last = std::none_of(queues_.begin(), queues_.end(), [&](const Queue& other) {
      return other.is_open() && other.port_index() != queues_[q].port_index();
    });
    if (const auto trouble = queues_[q].port().trouble(is_last ? kLongestDownSeconds : kLongDownSeconds))
      drop(q, *trouble);
  }
  close_dropped();
  if (!failure_ && !closed_) mend();
}

void Half::read_socket() {
  if (!closed_ && !take_what_came(socket_, &inbox_)) {
    closed_ = true;
    poll_completions();  // what arrived before
  }
  if (inbox_.size() >= sizeof(Notice)) take_notices();
}

bool Half::arm() {
  for (ibv_cq* queue : completions_)
    if (ibv_req_notify_cq(queue, 0) != 0) return false;
  take_completions();  // what came before that wakes nobody
  return true;
}

void Half::wait_end() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  for (const auto& port : hub_.ports)
    while (ibv_get_cq_event(port->channel(), &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
  if (ready_) look();
}

Error Half::gone() const {
  return {Code::kRemoteError,
          format("rank %d closed its verbs link: its process ended or its communicator was destroyed", config_.peer),
          config_.peer};
}

void Half::fail(const std::string& why) {
  if (!failure_)
    failure_ =
        Error{Code::kRemoteError, format("verbs link with rank %d: %s", config_.peer, why.c_str()), config_.peer};
}

std::string Half::reason(const ibv_wc& completion, const Queue& queue) const {
  std::string what = format("%s (vendor's code 0x%x)", ibv_wc_status_str(completion.status), completion.vendor_err);
  if (completion.status == IBV_WC_RETRY_EXC_ERR)
    what =
        "no answer after all retries (TUTTI_IB_TIMEOUT, TUTTI_IB_RETRIES): its machine or port is down, the network "
        "between is broken, or it cannot be reached by these addresses (TUTTI_IB_HCA, TUTTI_IB_GID_INDEX)";
  if (completion.status == IBV_WC_REM_ACCESS_ERR)
    what = "it does not let this rank write its memory: its communicator is being destroyed, or this is a bug in Tutti";
  std::string state = queue.port().down_because();
  const Deadline limit = Deadline::after_seconds(completion.status == IBV_WC_LOC_QP_OP_ERR ? kGoingDownSeconds : 0);
  while (state.empty() && !limit.passed()) state = queue.port().down_because();
  if (!state.empty()) what += "; the port is " + state + ": check its cable or its network interface";
  return what;
}

}  // namespace tutti::verbs
