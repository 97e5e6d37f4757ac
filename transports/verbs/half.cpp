#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "transports/verbs/link.h"

namespace tutti::verbs {

// One queue of completions for each port's device.
Result<void> Half::open_completions(uint32_t most) {
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return system_error("creating a descriptor to wait for completions (see ulimit -n)", errno);
  for (const auto& port : hub_.ports) {
    Completions& c = completions_.emplace_back();
    c.channel = ibv_create_comp_channel(port->context());
    if (c.channel == nullptr)
      return system_error(format("creating a completion channel of %s", port->name().c_str()), errno);
    fcntl(c.channel->fd, F_SETFL, fcntl(c.channel->fd, F_GETFL) | O_NONBLOCK);
    c.queue = ibv_create_cq(port->context(), static_cast<int>(most), nullptr, c.channel, 0);
    if (c.queue == nullptr)
      return system_error(format("creating a queue of %u completions of %s", most, port->name().c_str()), errno);
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, c.channel->fd, &event) != 0)
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
  for (const Completions& c : completions_) {
    if (c.queue != nullptr) ibv_destroy_cq(c.queue);
    if (c.channel != nullptr) ibv_destroy_comp_channel(c.channel);
  }
}

void Half::take_completions() {
  for (const Completions& c : completions_) {
    ibv_wc some[16];
    int n = 0;
    do {
      n = ibv_poll_cq(c.queue, 16, some);
      for (int i = 0; i < n; i++) take(some[i]);
      if (n < 0) fail("its completions cannot be read");
    } while (n == 16 && !failure_);
  }
}

void Half::take(const ibv_wc& completion) {
  const auto queue =
      std::find_if(queues_.begin(), queues_.end(), [&](const Queue& q) { return q.number() == completion.qp_num; });
  if (queue == queues_.end()) return;
  if (completion.status != IBV_WC_SUCCESS) return fail_by(completion, *queue);
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
    queue->completed(completion);
    if (Queue::lends(completion)) on_read();
    return;
  }
  // Half of them are enough for all that may be under way.
  uint32_t& owed = owed_[static_cast<size_t>(queue - queues_.begin())];
  if (++owed >= receives_ / 4) {
    if (!queue->receive(owed)) return fail("no receives can be posted any more");
    owed = 0;
  }
  on_arrival(ntohl(completion.imm_data));
}

// Who waits for a message may wait because what was sent before got lost, on whichever of the endpoint's links.
void Half::look() {
  look_at_socket();
  for (const auto& [number, sender] : hub_.senders)
    if (const Error* error = sender == this || failure_ ? nullptr : sender->broken()) failure_ = *error;
}

void Half::look_at_socket() {
  char byte;
  const ssize_t n = closed_ ? -1 : ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (!closed_ && n <= 0 && !(n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) {
    closed_ = true;
    take_completions();  // what arrived before
  }
  for (const Queue& queue : queues_)
    if (const auto& trouble = queue.port().trouble()) return fail(queue.port().name() + ": " + *trouble);
}

bool Half::arm(tuttiWait* wait) {
  *wait = {epoll_.get(), POLLIN};
  for (const Completions& c : completions_)
    if (ibv_req_notify_cq(c.queue, 0) != 0) return false;
  take_completions();  // what came before that wakes nobody
  return true;
}

void Half::wait_end() {
  for (const Completions& c : completions_) {
    unsigned n = 0;
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(c.channel, &queue, &context) == 0) n++;
    if (n > 0) ibv_ack_cq_events(c.queue, n);
  }
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

void Half::fail_by(const ibv_wc& completion, const Queue& queue) {
  // A peer that went is a better reason than what its going does to the queue pairs.
  if (!failure_) look_at_socket();
  if (closed_) return;
  std::string what = format("%s (vendor's code 0x%x)", ibv_wc_status_str(completion.status), completion.vendor_err);
  if (completion.status == IBV_WC_RETRY_EXC_ERR)
    what =
        "no answer after all retries (TUTTI_IB_TIMEOUT, TUTTI_IB_RETRIES): its machine or port is down, the network "
        "between is broken, or it cannot be reached by these addresses (TUTTI_IB_HCA, TUTTI_IB_GID_INDEX)";
  if (completion.status == IBV_WC_REM_ACCESS_ERR)
    what = "it does not let us write its memory: its communicator is going, or something is wrong with Tutti";
  if (const std::string state = queue.port().down_because(); !state.empty())
    what += "; the port is " + state + ": see to its cable, or to its network interface";
  fail(queue.port().name() + ": " + what);
}

}  // namespace tutti::verbs
