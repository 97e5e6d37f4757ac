#include "cuda/kept.h"

#include <mutex>
#include <vector>

namespace tutti::cuda {
namespace {

bool may_be_freed(const Kept& kept) {
  return kept.others != nullptr && kept.others->all_have_left();
}

void free(const Kept& kept) {
  const auto on_device = OnDevice::enter(*kept.port, kept.device);
  if (on_device) kept.port->free(kept.memory);
}

}  // namespace

void keep(Kept kept) {
  static auto* mutex = new std::mutex;  // never destroyed: other threads may outlive main
  static auto* all = new std::vector<Kept>;
  const std::lock_guard lock(*mutex);
  all->push_back(std::move(kept));
  for (const Kept& one : *all)
    if (may_be_freed(one)) free(one);
  std::erase_if(*all, may_be_freed);
}

}  // namespace tutti::cuda
