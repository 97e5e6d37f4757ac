#include "group/ending.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <utility>

#include "base/bytes.h"
#include "base/clock.h"

namespace tutti {
namespace {

std::string notice_payload(int origin, const Error& error) {
  constexpr size_t kMostSentenceBytes = 4096;
  const std::string sentence = error.message.substr(0, kMostSentenceBytes);
  return ByteWriter().all(origin, error.code, error.culprit_rank, sentence).take();
}

}  // namespace

void Ending::wait(int limit_ms) const {
  pollfd p{wake_fd(), POLLIN, 0};
  for (const Deadline end = Deadline::after_seconds(limit_ms / 1e3); !failed() && !end.passed();)
    ::poll(&p, 1, end.left_ms(limit_ms));
}

void Ending::fail_from(int origin, const Error& mine, const Error& theirs, bool also_after_goodbye) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed) || (leaving_ && !also_after_goodbye)) return;
  // While this rank waits in ask(), a loss is only the echo of the mistake that it asks about: it reports the mistake.
  const bool is_echo = !leaving_ && otherwise_.has_value() && mine.code == Code::kRemoteError;
  // The group ends even if there is no memory to say why.
  auto kept = contained([&]() -> Result<void> { return failure_ = is_echo ? *otherwise_ : mine, Result<void>(); });
  if (!kept) failure_ = std::move(kept).error();
  const auto told = contained([&]() -> Result<void> {
    if (leaving_) return {};
    notice_ = is_echo ? notice_payload(rank_, *otherwise_) : notice_payload(origin, theirs);
    return lines_.send_to_all(kNotice, notice_), Result<void>();
  });
  is_untold_ = !told;
  if (is_untold_) lines_.wake();
  failed_.store(true, std::memory_order_release);
  (void)eventfd_write(wake_fd_.get(), 1);
}

void Ending::repeat_to(int peer) {
  const std::lock_guard lock(mutex_);
  if (notice_.empty()) return;
  const bool was_untold = std::exchange(is_untold_, true);  // and stays so if there is no memory
  lines_.send(peer, kNotice, notice_);
  is_untold_ = was_untold;
}

void Ending::tell_again() {
  const std::lock_guard lock(mutex_);
  if (!is_untold_) return;
  if (notice_.empty()) notice_ = notice_payload(rank_, failure_);
  lines_.send_to_all(kNotice, notice_);
  is_untold_ = false;
}

bool Ending::hear(std::string_view notice, int n_ranks) {
  ByteReader payload(notice);
  const auto origin = payload.get<int32_t>(), code = payload.get<int32_t>(), culprit = payload.get<int32_t>();
  const std::string sentence = payload.get_string();
  const bool is_error = code > static_cast<int>(Code::kSuccess) && code <= static_cast<int>(Code::kTimeout);
  const auto is_rank = [&](int rank, int least) { return rank >= least && rank < n_ranks; };
  if (!payload.ok() || !is_error || !is_rank(origin, 0) || !is_rank(culprit, -1)) return false;
  const std::string name = name_(origin);
  const Error theirs{static_cast<Code>(code), sentence, culprit};
  Error mine = theirs;
  if (!sentence.starts_with(name)) mine.message = name + " reports: " + sentence;
  fail_from(origin, mine, theirs);
  return true;
}

void Ending::ask(std::string_view question, const Error& otherwise, int limit_ms) {
  {
    const std::lock_guard lock(mutex_);
    otherwise_ = otherwise;
  }
  tell(question);
  wait(limit_ms);
  fail(otherwise);
}

void Ending::say_goodbye(uint64_t operations) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed) || leaving_) return;
  leaving_ = true;
  lines_.send_to_all(kGoodbye, ByteWriter().put(operations).take());
}

}  // namespace tutti
