// What ranks on other hosts are told of this rank's current operation.
#include <atomic>
#include <thread>

#include "catch.h"
#include "comm/inquiry.h"
#include "debug/folder.h"
#include "sanitized.h"

using namespace tutti;
using tutti_test::Folder;

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
  for (int i = 0; i < (kSanitized ? 100 : 1000); i++) {
    Inquiry one(0, 2, asking), other(1, 2, busy);
    const auto answer = other.hear(one.question());
    refused += !answer || answer->says.empty() || !one.hear(answer->says);
  }
  is_over = true;
  operations.join();
  CHECK(refused == 0);
}

TEST_CASE("what a rank asks and says is passed on once, answered for all, and sound") {
  const Recorder asking;
  Recorder busy;
  busy.share(1, 40, 0x6d616e79);
  busy.begin({.sequence = 1, .collective = Collective::kBarrier});
  std::vector<int> many{0};
  for (int rank = 2; rank < 30; rank++) many.push_back(rank);
  busy.record_wait(1'000'000'000, many);
  Inquiry one(0, 40, asking), other(1, 40, busy), third(2, 40, asking), few(0, 10, asking);
  const std::string question = one.question(), another = third.question();
  const auto answer = other.hear(question);
  REQUIRE(answer);
  CHECK(answer->passes_on);
  CHECK_FALSE(answer->says.empty());
  const auto again = other.hear(question);
  REQUIRE(again);
  CHECK_FALSE(again->passes_on);
  const auto to_third = other.hear(another);
  REQUIRE(to_third);
  CHECK(to_third->passes_on);
  CHECK(to_third->says.empty());  // it gets the other answer
  CHECK(other.question().empty());
  const auto own = one.hear(question);
  REQUIRE(own);
  CHECK_FALSE(own->passes_on);
  CHECK(one.hear(answer->says));
  CHECK_FALSE(few.hear(answer->says));  // the answer names awaited ranks that do not exist here
}

TEST_CASE("a rank that saw all others on its host asks them once it does not", "[long]") {
  const Folder folder("TUTTI_TRACE_DIR");
  Recorder mine, other;
  mine.share(0, 2, 0x736565);
  other.share(1, 2, 0x736565);
  constexpr int64_t kLongNs = 1'000'000'000;
  Inquiry inquiry(0, 2, mine);
  CHECK_FALSE(inquiry.is_due(kLongNs));
  std::filesystem::remove(other.path());
  bool is_due = false;
  for (int i = 0; i < 1000 && !is_due; i++) {  // it does not look each time
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    is_due = inquiry.is_due(kLongNs);
  }
  CHECK(is_due);
}
