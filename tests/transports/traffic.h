// Streams of messages that can be verified: size, tag and payload of message i follow from the seed and i.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "testing.h"

namespace tutti::test {

inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

struct Traffic {
  uint64_t seed = 1;
  uint64_t messages = 1000;
  uint32_t max_bytes = 4096;

  // Empty, one byte, full, and anything between.
  uint32_t bytes_of(uint64_t i) const {
    const uint64_t r = mix(seed ^ i);
    const auto any = static_cast<uint32_t>((r >> 8) % (max_bytes + 1));
    switch (r % 8) {
      case 0: return 0;
      case 1: return 1;
      case 2: return max_bytes;
      case 3: return any - (any > 0 && any % 2 == 0);
      case 4: return any % 64;
      default: return any;
    }
  }
  // In runs, like operations of several messages, whose tags increase by one or more.
  tuttiTag tag_of(uint64_t i) const {
    const uint64_t run = i / 8;
    return {{i << run % 4 * 4, seed, mix(run), ~run}};
  }

  // The same random bytes for all, starting at different positions. Generating new ones took half of these tests' time
  // under ThreadSanitizer. Their number is prime, so that swapped blocks are noticed.
  void fill(uint64_t i, void* data) const {
    static const auto random = [] {
      std::array<char, 65521> bytes;
      for (size_t k = 0; k < bytes.size(); k++) bytes[k] = static_cast<char>(mix(k));
      return bytes;
    }();
    char* to = static_cast<char*>(data);
    size_t from = mix(seed + i) % random.size();
    for (size_t left = bytes_of(i); left > 0; from = 0) {
      const size_t some = std::min(left, random.size() - from);
      memcpy(to, &random[from], some);
      to += some, left -= some;
    }
  }
  // "", or what is wrong with a message that should be number i.
  std::string check(uint64_t i, const tuttiMessage& m) const {
    const tuttiTag tag = tag_of(i);
    if (memcmp(&tag, &m.tag, sizeof tag) != 0)
      return format("message %llu came with the tag of %llu", static_cast<unsigned long long>(i),
                    static_cast<unsigned long long>(m.tag.word[0]));
    if (m.bytes != bytes_of(i)) return format("message of %u bytes came with %u", bytes_of(i), m.bytes);
    // Large payloads are aligned to cache lines; the smallest messages may be within a line.
    const uintptr_t alignment = m.bytes > 16 ? 64 : 16;
    if (reinterpret_cast<uintptr_t>(m.data) % alignment != 0) return "payload is not aligned";
    std::string expected(m.bytes, '\0');
    fill(i, expected.data());
    return memcmp(expected.data(), m.data, m.bytes) == 0 ? "" : "payload differs";
  }
};

// One end of a stream. step() returns whether it made progress; otherwise it has polled the link.
class Side {
 public:
  Side(Link& link, const Traffic& traffic) : link_(link), traffic_(traffic) {}
  virtual ~Side() = default;
  virtual bool step() = 0;
  virtual bool done() = 0;
  virtual bool waits_for_slot() const = 0;
  uint64_t count() const { return next_; }
  const std::string& trouble() const { return trouble_; }

  // Sleeps as an executor does; false, with trouble set, if nothing woke it.
  bool sleep() {
    tuttiWait wait;
    bool woken = true;
    if (link_.wait_begin(&wait)) {
      const bool is_blind = wait.fd < 0 && wait.at_most_ns == 0;  // there is nothing to sleep on
      woken = wakes(wait, is_blind ? 1 : kPatienceMs) || is_blind;
      sleeps_++;
    }
    link_.wait_end();
    if (!woken) trouble_ = format("not woken at message %llu", static_cast<unsigned long long>(next_));
    return woken;
  }
  uint64_t sleeps() const { return sleeps_; }

 protected:
  bool poll_link() {
    if (const Health health = poll_once(link_); !health) trouble_ = health.error.text;
    return false;
  }
  Link& link_;
  Traffic traffic_;
  uint64_t next_ = 0;
  uint64_t sleeps_ = 0;
  std::string trouble_;
};

class Sender final : public Side {
 public:
  using Side::Side;
  bool step() override {
    if (next_ == traffic_.messages || !(mix(next_) % 2 == 0 ? push() : publish())) return poll_link();
    next_++;
    return true;
  }
  bool done() override { return next_ == traffic_.messages && link_.unsent() == 0; }
  bool waits_for_slot() const override { return true; }

 private:
  bool publish() {
    unsent_ = link_.unsent();
    void* at = nullptr;
    if (link_.acquire(nullptr, traffic_.bytes_of(next_), TUTTI_IF_POSTED, &at) == TUTTI_NO_ROOM) return false;
    traffic_.fill(next_, at);
    return published(link_.publish(traffic_.bytes_of(next_), traffic_.tag_of(next_)));
  }
  bool push() {
    traffic_.fill(next_, pushed_.data());
    unsent_ = link_.unsent();
    return published(link_.push(pushed_.data(), traffic_.bytes_of(next_), traffic_.tag_of(next_)));
  }
  bool published(int result) {
    if (result == 2 && link_.unsent() > unsent_) trouble_ = "what was said not to hold this rank up does";
    return result != 0;
  }
  uint32_t unsent_ = 0;
  std::vector<char> pushed_ = std::vector<char>(traffic_.max_bytes);
};

class Receiver final : public Side {
 public:
  Receiver(Link& link, const Traffic& traffic)
      : Side(link, traffic), registration_(SharedMemory::add(place_.data(), place_.size()).value()->id) {}
  ~Receiver() override { SharedMemory::remove(registration_); }
  bool step() override {
    tuttiMessage message{};
    post_ahead();
    if (mix(~next_) % 2 != 0) link_.match(traffic_.bytes_of(next_), traffic_.tag_of(next_));  // even if there is none
    if (!link_.peek(&message)) {
      post();
      return poll_link();
    }
    if (message.data == place() || (next_ == ahead_ && message.data == place_ahead())) placed_++;
    trouble_ = traffic_.check(next_, message);
    if (trouble_.empty() && !matches(message)) trouble_ = "match differs from peek";
    if (!trouble_.empty()) return false;
    link_.release();
    next_++;
    return true;
  }
  bool done() override { return next_ == traffic_.messages; }
  bool waits_for_slot() const override { return false; }
  // Messages that arrived at their posted places.
  uint64_t placed() const { return placed_; }

 private:
  bool matches(const tuttiMessage& message) {
    tuttiTag other = message.tag;
    other.word[next_ % 4] ^= 1;
    return link_.match(message.bytes, message.tag) == message.data && link_.match(message.bytes, other) == nullptr &&
           link_.match(message.bytes + 1, message.tag) == nullptr;
  }
  void* place() { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(place_.data()) + 63) / 64 * 64); }
  void* place_ahead() { return place_ahead_.get(); }
  // Posts one later message at a time, some of them with a wrong size.
  void post_ahead() {
    if (ahead_ > next_ || (ahead_ == next_ && next_ > 0) || next_ % 2 != 0) return;
    const auto ahead = static_cast<uint32_t>(1 + mix(next_) % 3);
    ahead_ = next_ + ahead;
    link_.post(ahead, place_ahead(), traffic_.bytes_of(ahead_) + (mix(~ahead_) % 4 == 0));
  }
  // Posts places for some messages, some of them with a wrong size.
  void post() {
    const uint64_t kind = mix(~next_) % 4;
    if (kind < 2) link_.post(0, place(), traffic_.bytes_of(next_) + static_cast<uint32_t>(kind));
  }
  struct Free {
    void operator()(void* memory) const { SharedMemory::free(memory); }
  };
  std::vector<char> place_ = std::vector<char>(traffic_.max_bytes + 128);
  std::unique_ptr<void, Free> place_ahead_{SharedMemory::allocate(traffic_.max_bytes + 128).value()};
  uint64_t ahead_ = 0;  // message for which that place is posted
  uint64_t registration_;
  uint64_t placed_ = 0;
};

// Runs one end until it is done, or has done `enough`: "" or what went wrong.
inline std::string run(Side& side, bool sleeping = false, uint64_t enough = UINT64_MAX) {
  Deadline deadline = Deadline::after_seconds(kPatienceSeconds);  // of one step without progress
  Patience patience;
  bool waited = false;
  while (!side.done() && side.count() < enough) {
    if (side.step()) {
      patience.restore();
      if (std::exchange(waited, false)) deadline = Deadline::after_seconds(kPatienceSeconds);
      continue;
    }
    if (!side.trouble().empty()) return side.trouble();
    if (deadline.passed()) return format("stuck at message %llu", static_cast<unsigned long long>(side.count()));
    waited = true;
    if (!sleeping)
      patience.wait();
    else if (!side.sleep())
      return side.trouble();
  }
  return "";
}

// Runs all ends alternately in this thread; `turns(side)` is the number of steps that a side may make at a time.
template <class Turns>
std::string run_together(const std::vector<Side*>& sides, Turns&& turns) {
  Deadline deadline = Deadline::after_seconds(kPatienceSeconds);
  Patience patience;
  for (bool all_done = false; !all_done;) {
    bool progress = false;
    all_done = true;
    for (Side* side : sides) {
      for (uint64_t n = turns(*side); n > 0 && !side->done() && side->step(); n--) progress = true;
      if (!side->trouble().empty()) return side->trouble();
      all_done = all_done && side->done();
    }
    if (deadline.passed()) return "stuck";
    if (!progress) patience.wait();
    if (progress) patience.restore();
    if (progress) deadline = Deadline::after_seconds(kPatienceSeconds);
  }
  return "";
}
inline std::string run_together(const std::vector<Side*>& sides) {
  return run_together(sides, [](Side&) { return 8; });
}

}  // namespace tutti::test
