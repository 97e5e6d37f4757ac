#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>

#include "base/log.h"
#include "transports/verbs/link.h"

namespace tutti::verbs {
namespace {

constexpr int64_t kLookNs = 1'000'000;
// A cable that is plugged in again is back sooner. With another port to go to, waiting is worth less.
constexpr double kLongestDownSeconds = 10, kLongDownSeconds = 2;
// How long a port that goes down may take to report that, after its queue pairs have ended.
constexpr double kGoingDownSeconds = 0.05;

std::string reason(const ibv_wc& completion, const Port& port) {
  std::string what = format("%s (vendor's code 0x%x)", ibv_wc_status_str(completion.status), completion.vendor_err);
  if (completion.status == IBV_WC_RETRY_EXC_ERR)
    what =
        "no answer after all retries (TUTTI_IB_TIMEOUT, TUTTI_IB_RETRIES): its machine or port is down, the network in "
        "between is broken, or it cannot be reached at these addresses (TUTTI_IB_HCA, TUTTI_IB_GID_INDEX)";
  if (completion.status == IBV_WC_REM_ACCESS_ERR)
    what =
        "it does not let this rank write to its memory: its communicator is being destroyed, or this is a bug in Tutti";
  // Flushing comes first only where the device refused what it received: it then tells the sender why, not this rank.
  if (completion.status == IBV_WC_WR_FLUSH_ERR)
    what =
        "the device has ended this connection, and gives the reason to the other end only: mostly packets that arrived "
        "late or twice. Look at what the other rank reports, and for lost packets in the network (TUTTI_IB_TIMEOUT)";
  std::string state = port.down_because();
  const Deadline limit = Deadline::after_seconds(completion.status == IBV_WC_LOC_QP_OP_ERR ? kGoingDownSeconds : 0);
  while (state.empty() && !limit.passed()) state = port.down_because();
  if (!state.empty()) what += "; the port is " + state + ": check its cable or its network interface";
  return what;
}

}  // namespace

void Half::take_completions() {
  poll_completions();
  close_dropped();
}

void Half::poll_completions() {
  for (size_t port = 0; port < pairs_.completions().size(); port++) {
    ibv_wc some[16];
    int n = 0;
    do {
      n = ibv_poll_cq(pairs_.completions()[port].get(), 16, some);
      for (int i = 0; i < n; i++) take(some[i], port);
      if (n < 0) fail("its completions cannot be read");
    } while (n == 16 && !failure_);
  }
}

// Each device numbers its queue pairs independently.
void Half::take(const ibv_wc& completion, size_t port) {
  const auto pair = std::find_if(pairs_.begin(), pairs_.end(), [&](const QueuePair& one) {
    return one.queue.is_open() && one.queue.port_index() == port && one.queue.number() == completion.qp_num;
  });
  if (pair == pairs_.end()) return;
  Queue& queue = pair->queue;
  if (completion.status != IBV_WC_SUCCESS) {
    if (Queue::is_receive(completion)) pair->is_flushed = true;
    const std::string why = reason(completion, queue.port());
    if (completion.status != IBV_WC_REM_ACCESS_ERR) return pairs_.drop(*pair, why);
    // No other port would be allowed either. But if the peer has gone, that is a better reason.
    read_socket();
    if (!side_.closed) fail(queue.port().name() + ": " + why);
    return;
  }
  if (!std::exchange(pair->is_proved, true))
    log(LogLevel::kInfo, "verbs link with rank %d: %s carries its share again", config_.peer,
        queue.port().name().c_str());
  if (!Queue::is_receive(completion)) {
    queue.completed(completion);
    if (Queue::exposes(completion)) on_read(Queue::slot(completion));
    return;
  }
  if (!queue.received()) pairs_.drop(*pair, "no receives can be posted any more");
  on_arrival(ntohl(completion.imm_data), completion.byte_len);
}

const Error* Hub::tend_others(const Half* one) {
  if (now_ns() < next_look_ns) return nullptr;
  const Error* first = nullptr;
  const auto tend_to = [&](Half* other) {
    const Error* error = other == one ? nullptr : other->tend();
    if (first == nullptr) first = error;
  };
  for (const auto& [number, sender] : senders) tend_to(sender);
  for (const auto& [from, receiver] : receivers) tend_to(receiver);
  next_look_ns = now_ns() + kLookNs;
  return first;
}

// A rank may be waiting for a message because an earlier message or release was lost on any of the endpoint's links.
void Half::look() {
  look_at_own();
  const Error* error = hub_.tend_others(this);
  if (error != nullptr && !failure_) failure_ = *error;
}

const Error* Half::tend() {
  if (!ready_) return nullptr;
  if (!failure_ && !side_.closed) take_completions();
  if (!failure_ && !side_.closed) look_at_own();
  return failure_ && !side_.closed ? &*failure_ : nullptr;
}

void Half::look_at_own() {
  read_socket();
  for (QueuePair& pair : pairs_) {
    if (!pair.is_usable()) continue;
    const bool is_last = std::none_of(pairs_.begin(), pairs_.end(), [&](const QueuePair& other) {
      return other.queue.is_open() && other.queue.port_index() != pair.queue.port_index();
    });
    if (const auto trouble = pair.queue.port().trouble(is_last ? kLongestDownSeconds : kLongDownSeconds))
      pairs_.drop(pair, *trouble);
  }
  close_dropped();
  if (!failure_ && !side_.closed) mend();
}

void Half::read_socket() {
  if (!side_.closed && side_.look()) poll_completions();  // completions from before that
  Notice notice;
  while (!failure_ && side_.take(&notice)) {
    notice.why[sizeof notice.why - 1] = '\0';
    take_notice(notice);
  }
}

void Half::sleep_on(tuttiWait* wait) const {
  for (const auto& port : hub_.ports) add_wait(wait, port->channel()->fd, POLLIN);
  add_wait(wait, side_.socket.get(), POLLIN | POLLRDHUP);
}

bool Half::arm() {
  if (!pairs_.arm()) return false;
  take_completions();  // what came before pairs_.arm() wakes nobody
  return true;
}

void Half::wait_end() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  for (const auto& port : hub_.ports)
    while (ibv_get_cq_event(port->channel(), &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
  if (ready_) look();
}

void Half::fail(const std::string& why) {
  if (!failure_)
    failure_ =
        Error{Code::kRemoteError, format("verbs link with rank %d: %s", config_.peer, why.c_str()), config_.peer};
}

}  // namespace tutti::verbs
