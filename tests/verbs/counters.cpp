#include "counters.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace tutti::test {
namespace {

Counters here{};

}  // namespace

Counters* g_counters = &here;

namespace {

int (*real_post)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
int (*real_poll)(ibv_cq*, int, ibv_wc*);
int (*real_receive)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**);

template <class Call>
int counted(Call&& call) {
  g_counters->inside = 1;
  const int result = call();
  g_counters->inside = 0;
  return result;
}
int count_post(ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
  if (const uint64_t post = g_counters->posts++; g_counters->end > 0) {
    if (post == g_counters->end) g_counters->kind = 0;
    if (post == g_counters->from) g_counters->kind = 1, raise(SIGUSR1);
  }
  return counted([&] { return real_post(pair, request, bad); });
}
int count_poll(ibv_cq* queue, int most, ibv_wc* taken) {
  const int n = counted([&] { return real_poll(queue, most, taken); });
  g_counters->completions += static_cast<uint64_t>(std::max(n, 0));
  return n;
}
int count_receive(ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
  return counted([&] { return real_receive(pair, request, bad); });
}

}  // namespace
}  // namespace tutti::test

extern "C" __attribute__((visibility("default"))) ibv_context* ibv_open_device(ibv_device* device) {
  using namespace tutti::test;
  const auto next = reinterpret_cast<decltype(&ibv_open_device)>(dlsym(RTLD_NEXT, "ibv_open_device"));
  ibv_context* context = next(device);
  if (context == nullptr) return context;
  real_post = std::exchange(context->ops.post_send, count_post);
  real_poll = std::exchange(context->ops.poll_cq, count_poll);
  real_receive = std::exchange(context->ops.post_recv, count_receive);
  return context;
}
