// What ranks of other hosts are told of what this one is in.
#include <atomic>
#include <thread>

#include "catch.h"
#include "comm/inquiry.h"
#include "sanitized.h"

using namespace tutti;

TEST_CASE("what begins and ends while a rank says what it is in makes no nonsense of that", "[long]") {
  const Recorder asking;
  Recorder busy;
  busy.share(1, 2, 0x696e71);
  std::atomic<bool> is_over{false};
  std::thread operations([&] {
    for (uint64_t sequence = 1; !is_over; sequence++) {
      busy.begin({.sequence = sequence, .collective = Collective::kBarrier});
      busy.end(true);
    }
  });
  int refused = 0;
  for (int i = 0; i < (kSanitized ? 300 : 1000); i++) {
    Inquiry one(0, 2, asking), other(1, 2, busy);
    const auto answer = other.hear(one.question());
    refused += !answer || answer->says.empty() || !one.hear(answer->says);
  }
  is_over = true;
  operations.join();
  CHECK(refused == 0);
}
