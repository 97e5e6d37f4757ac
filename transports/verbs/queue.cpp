#include "transports/verbs/queue.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/env.h"
#include "base/handshake.h"

namespace tutti::verbs {
namespace {

constexpr uint32_t kInlineBytes = 256;
// A receiver that has not posted its receives in time is retried after 0.64 ms, without limit: it is alive, or its
// connection would end.
constexpr uint8_t kNotReadyTimer = 12, kNotReadyRetries = 7;

Result<void> change(ibv_qp* pair, ibv_qp_attr& attributes, int mask, const Port& port, const char* what) {
  const int failure = ibv_modify_qp(pair, &attributes, mask);
  if (failure == 0) return {};
  return system_error(format("%s a queue pair of %s", what, port.name().c_str()), failure);
}

}  // namespace

Result<Queue> Queue::create(const Route& route, ibv_cq* completions, uint32_t sends, uint32_t receives) {
  const Port& port = *route.port;
  Queue queue(route);
  queue.sends_ = sends;
  queue.receives_ = receives;
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = completions;
  init.qp_type = IBV_QPT_RC;
  for (const uint32_t inline_bytes : {kInlineBytes, 0u}) {  // some devices take nothing inline
    init.cap = {sends + 1, receives, 2, 1, inline_bytes};
    if (queue.pair_ == nullptr) queue.pair_.reset(ibv_create_qp(port.domain(), &init));
  }
  if (queue.pair_ == nullptr) return system_error(format("creating a queue pair of %s", port.name().c_str()), errno);
  queue.number_ = queue.pair_->qp_num;
  queue.inline_bytes_ = init.cap.max_inline_data;
  random_bytes(&queue.sequence_, sizeof queue.sequence_);
  queue.sequence_ &= 0xffffff;
  TUTTI_TRY_ASSIGN(const int64_t key, env_int("TUTTI_IB_PKEY"));
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = port.number();
  attributes.pkey_index = static_cast<uint16_t>(key);
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  TUTTI_TRY(change(queue.pair_.get(), attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                   port, "setting up (check TUTTI_IB_PKEY)"));
  if (!queue.receive(receives)) return system_error("posting receives", errno);
  return queue;
}

QueueAddress Queue::address(const Pinned& memory) const {
  return {number_, sequence_, memory.remote_key(port_index())};
}

Result<void> Queue::connect(const QueueAddress& peer) {
  const Port& port = *route_.port;
  TUTTI_TRY_ASSIGN(const int64_t level, env_int("TUTTI_IB_SL"));
  TUTTI_TRY_ASSIGN(const int64_t traffic_class, env_int("TUTTI_IB_TC"));
  TUTTI_TRY_ASSIGN(const int64_t timeout, env_int("TUTTI_IB_TIMEOUT"));
  TUTTI_TRY_ASSIGN(const int64_t retries, env_int("TUTTI_IB_RETRIES"));
  peer_key_ = peer.key;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = static_cast<ibv_mtu>(std::min(route_.peer.mtu, port.address().mtu));
  a.dest_qp_num = peer.number;
  a.rq_psn = peer.sequence;
  a.min_rnr_timer = kNotReadyTimer;
  a.ah_attr.port_num = port.number();
  a.ah_attr.sl = static_cast<uint8_t>(level);
  a.ah_attr.dlid = route_.peer.lid;
  a.ah_attr.is_global = port.address().is_ethernet;
  memcpy(a.ah_attr.grh.dgid.raw, route_.peer.gids[route_.peer_gid].data(), 16);
  a.ah_attr.grh.sgid_index = port.gid_index(route_.my_gid);
  a.ah_attr.grh.hop_limit = 64;
  a.ah_attr.grh.traffic_class = static_cast<uint8_t>(traffic_class);
  TUTTI_TRY(change(pair_.get(), a,
                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                   port, "connecting (check TUTTI_IB_GID_INDEX)"));
  a = {};
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = sequence_;
  a.timeout = static_cast<uint8_t>(timeout);
  a.retry_cnt = static_cast<uint8_t>(retries);
  a.rnr_retry = kNotReadyRetries;
  return change(
      pair_.get(), a,
      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
      port, "starting");
}

bool Queue::write(const Write& write) {
  ibv_send_wr request{}, *bad = nullptr;
  ibv_sge from[2] = {write.from[0], write.from[1]};
  uint32_t bytes = 0;
  for (int i = 0; i < write.n_from; i++) bytes += from[i].length;
  request.sg_list = from;
  request.num_sge = write.n_from;
  request.opcode = write.announced ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
  request.imm_data = htonl(write.immediate);
  request.wr.rdma.remote_addr = write.to;
  request.wr.rdma.rkey = write.key;
  if (bytes > 0 && bytes <= inline_bytes_ && !write.is_device) request.send_flags |= IBV_SEND_INLINE;
  posted_++;
  if (write.signalled) {
    request.send_flags |= IBV_SEND_SIGNALED;
    signalled_ = posted_;
  }
  request.wr_id = posted_ << 7 | write.slot << 1 | (write.exposes ? 1 : 0);
  return ibv_post_send(pair_.get(), &request, &bad) == 0;
}

bool Queue::stop() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  return ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE) == 0;
}

// Half of the receives are enough for all that may be in flight.
bool Queue::received() {
  return ++owed_ < receives_ / 4 || receive(std::exchange(owed_, 0));
}

bool Queue::receive(uint32_t n) {
  ibv_recv_wr requests[64], *bad = nullptr;
  while (n > 0) {
    const uint32_t some = std::min<uint32_t>(n, 64);
    for (uint32_t i = 0; i < some; i++) {
      requests[i] = {};
      if (i + 1 < some) requests[i].next = &requests[i + 1];
    }
    if (ibv_post_recv(pair_.get(), requests, &bad) != 0) return false;
    n -= some;
  }
  return true;
}

}  // namespace tutti::verbs
