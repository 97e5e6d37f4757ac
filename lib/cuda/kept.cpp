#include "cuda/kept.h"

#include <mutex>
#include <vector>

namespace tutti::cuda {
namespace {

// False if somebody may still use it. Looked at once: the last one may leave at any time.
bool free_if_unused(const Kept& kept) {
  if (kept.others == nullptr || !kept.others->all_have_left()) return false;
  const auto on_device = OnDevice::enter(*kept.port, kept.device);
  if (on_device) kept.port->free(kept.memory);
  return true;
}

}  // namespace

void keep(Kept kept) {
  static auto* mutex = new std::mutex;  // never destroyed: other threads may outlive main
  static auto* all = new std::vector<Kept>;
  const std::lock_guard lock(*mutex);
  if (kept.memory != nullptr) all->push_back(std::move(kept));
  std::erase_if(*all, free_if_unused);
}

}  // namespace tutti::cuda
