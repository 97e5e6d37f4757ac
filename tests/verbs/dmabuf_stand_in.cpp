// Replaces ibv_reg_dmabuf_mr where no device supports it: Soft-RoCE does not, and a memfd is no dmabuf. It maps the
// descriptor at any free address and registers that mapping under the requested address. So everything that the network
// does is real: keys, addresses, and the bytes that it reads and writes through the descriptor. The kernel's way from a
// dmabuf to a device's memory is not. For programs that link it, or for LD_PRELOAD.
#include <infiniband/verbs.h>
#include <sys/mman.h>

extern "C" __attribute__((visibility("default"))) ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* domain, uint64_t offset,
                                                                            size_t length, uint64_t iova, int fd,
                                                                            int access) {
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return nullptr;
  ibv_mr* region = ibv_reg_mr_iova(domain, memory, length, iova, access);
  munmap(memory, length);  // the region holds the pages
  return region;
}
