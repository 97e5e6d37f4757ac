// Stands in for ibv_reg_dmabuf_mr where no device can do that: Soft-RoCE cannot, and a memfd is no dmabuf. It maps the
// descriptor wherever there is room and registers that, under the address that was asked for. So what is real is all
// that the network does: keys, addresses, and the bytes that it reads and writes behind the descriptor. What is not is
// the kernel's way from a dmabuf to a device's memory. In a program of its own right, or for LD_PRELOAD.
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
