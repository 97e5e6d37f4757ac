#include "transports/shm/local_end.h"

#include <sys/eventfd.h>

#include <atomic>

#include "base/halves.h"

namespace tutti::shm {

struct LocalEnd::Pair {
  const uint64_t id;
  std::shared_ptr<Bell> bells[2];  // the sender's, and the receiver's, which is there once it has joined
  std::atomic<bool> joined{false}, left[2]{};
};

namespace {

// Those that nobody has joined yet. Never destroyed: threads may outlive main.
auto& g_pairs = *new Halves<uint64_t, LocalEnd::Pair>;

}  // namespace

bool Bell::open() {
  if (!fd_) fd_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return static_cast<bool>(fd_);
}

// One that cannot be rung once more has been rung often enough.
void Bell::ring() const {
  (void)eventfd_write(fd_.get(), 1);
}

void Bell::hush() const {
  eventfd_t rings;
  (void)eventfd_read(fd_.get(), &rings);
}

std::unique_ptr<LocalEnd> LocalEnd::offer(uint64_t id, std::shared_ptr<Bell> bell) {
  if (!bell->open()) return nullptr;
  auto pair = std::make_shared<Pair>(id);
  pair->bells[0] = bell;
  g_pairs.meet(id, [&] { return pair; });
  return std::unique_ptr<LocalEnd>(new LocalEnd(std::move(pair), std::move(bell), false));
}

std::unique_ptr<LocalEnd> LocalEnd::join(uint64_t id, std::shared_ptr<Bell> bell) {
  if (!bell->open()) return nullptr;
  auto pair = g_pairs.meet(id, [] { return std::shared_ptr<Pair>(); });
  if (!pair) return nullptr;
  pair->bells[1] = bell;
  pair->joined.store(true, std::memory_order_release);
  return std::unique_ptr<LocalEnd>(new LocalEnd(std::move(pair), std::move(bell), true));
}

LocalEnd::~LocalEnd() {
  pair_->left[receives_].store(true, std::memory_order_release);
  g_pairs.withdraw(pair_->id, pair_);
  if (is_joined()) ring_other();
}

bool LocalEnd::is_joined() const {
  return pair_->joined.load(std::memory_order_acquire);
}

void LocalEnd::ring_other() const {
  pair_->bells[!receives_]->ring();
}

bool LocalEnd::other_has_left() const {
  return pair_->left[!receives_].load(std::memory_order_acquire);
}

}  // namespace tutti::shm
