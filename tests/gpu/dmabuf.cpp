// Whether network devices can access this GPU's memory: exports some of it as a dmabuf, as GPUDirect RDMA needs it, and
// flushes writes as if they had made some. Exit status: 0 yes, 77 no (with the reason), 1 if it failed.
#include <cstdio>
#include <string>

#include "cuda/port.h"

namespace {

// "", or what prevents it.
tutti::Result<std::string> try_device(tutti::cuda::Port& port) {
  constexpr size_t kBytes = 2 << 20;
  TUTTI_TRY_ASSIGN(void* const memory, port.allocate(kBytes));
  const auto dmabuf = port.dmabuf_of(memory, kBytes);
  const auto flushed = dmabuf ? port.flush_remote_writes() : tutti::Result<void>();
  port.free(memory);
  if (!flushed) return flushed.error();
  return dmabuf ? std::string() : dmabuf.error().message;
}

int skip(const char* why) {
  printf("skipped: %s\n", why);
  return 77;
}

}  // namespace

int main() {
  tutti::cuda::Port* const port = tutti::cuda::port();
  if (port == nullptr) return skip("built without nvcc");
  if (const auto device = port->use(0); !device) return skip(device.error().message.c_str());
  const auto obstacle = try_device(*port);
  if (!obstacle) {
    printf("%s\n", obstacle.error().message.c_str());
    return 1;
  }
  if (!obstacle.value().empty()) return skip(obstacle.value().c_str());
  printf("network devices can read and write this GPU's memory\n");
  return 0;
}
