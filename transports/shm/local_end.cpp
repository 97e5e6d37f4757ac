#include "transports/shm/local_end.h"

#include <sys/eventfd.h>

#include "base/halves.h"

namespace tutti::shm {
namespace {

// Pairs that no receiver has joined yet. Never destroyed: threads may outlive main.
auto& g_pairs = *new Halves<uint64_t, LocalEnd::Pair>;

}  // namespace

bool Bell::open() {
  if (!fd_) fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return static_cast<bool>(fd_);
}

// If the write fails, the eventfd's counter is full: the bell has been rung often enough.
void Bell::ring() const {
  (void)eventfd_write(fd_.get(), 1);
}

void Bell::hush() const {
  eventfd_t rings;
  (void)eventfd_read(fd_.get(), &rings);
}

std::unique_ptr<LocalEnd> LocalEnd::meet(uint64_t id, std::shared_ptr<Bell> bell, bool receives) {
  if (!bell->open()) return nullptr;
  auto pair = g_pairs.meet(id, [&] { return receives ? nullptr : std::make_shared<Pair>(id); });
  if (!pair) return nullptr;
  pair->bells[receives] = std::move(bell);
  if (receives) pair->joined.store(true, std::memory_order_release);
  return std::unique_ptr<LocalEnd>(new LocalEnd(std::move(pair), receives));
}

LocalEnd::~LocalEnd() {
  pair_->left[receives_].store(true, std::memory_order_release);
  g_pairs.withdraw(pair_->id, pair_);
  if (is_joined()) ring_other();
}

}  // namespace tutti::shm
