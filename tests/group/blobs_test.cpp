// What ranks have said, packed into one message.
#include "group/blobs.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <vector>

#include "base/bytes.h"
#include "base/handshake.h"
#include "catch.h"

using namespace tutti;

namespace {

void check_packs(const std::vector<std::string>& blobs) {
  const auto n = static_cast<int>(blobs.size());
  const Blobs packed = Blobs::pack(blobs);
  const auto opened = Blobs::open(std::string(packed.bytes()), n);
  REQUIRE(opened);
  REQUIRE(opened.value().size() == blobs.size());
  for (size_t i = 0; i < blobs.size(); i++) REQUIRE(opened.value()[i] == blobs[i]);
  CHECK(!Blobs::open(std::string(packed.bytes()), n + 1));
  CHECK(!Blobs::open(std::string(packed.bytes()) + "x", n));
}

// Like introductions: much is the same for all ranks, some for those of a host, and some is each rank's own.
std::vector<std::string> introductions(int n_hosts, int ranks_per_host) {
  std::string common(200, '\0');
  random_bytes(common.data(), common.size());
  std::vector<std::string> blobs;
  for (int host = 0; host < n_hosts; host++) {
    std::string of_host(100, '\0');
    random_bytes(of_host.data(), of_host.size());
    for (int rank = 0; rank < ranks_per_host; rank++)
      blobs.push_back(ByteWriter().put_string(common).put(rank).put_string(of_host).put(7 * rank + host).take());
  }
  return blobs;
}

}  // namespace

TEST_CASE("blobs of all kinds are the same again when they were packed") {
  check_packs({});
  check_packs({""});
  check_packs({"", "", ""});
  check_packs({"a", "", "bc"});
  check_packs({"same", "same"});
  check_packs({std::string(64 << 10, 'x'), std::string(64 << 10, 'y'), std::string((64 << 10) - 1, 'x')});
  check_packs(introductions(1, 20));
  check_packs(introductions(5, 4));
  std::vector<std::string> few_differ(3, std::string(64 << 10, 'x'));
  few_differ[1].front() = few_differ[1].back() = 'a';
  few_differ[2][5] = few_differ[2][11] = few_differ[2][20] = 'b';
  check_packs(few_differ);
}

TEST_CASE("an introduction takes less than 100 bytes, and words that all say no more than one rank's") {
  for (const auto& [hosts, ranks] : {std::pair{1, 64}, {16, 8}, {8, 64}}) {
    const auto blobs = introductions(hosts, ranks);
    CHECK(Blobs::pack(blobs).bytes().size() < 100 * blobs.size());
  }
  CHECK(Blobs::pack(std::vector<std::string>(1000)).bytes().size() ==
        Blobs::pack(std::vector<std::string>(2)).bytes().size());
}

TEST_CASE("damaged lists of blobs are refused, or give blobs") {
  const auto blobs = introductions(2, 3);
  const std::string good(Blobs::pack(blobs).bytes());
  for (size_t n = 0; n < good.size(); n++) CHECK(!Blobs::open(good.substr(0, n), 6));
  size_t refused = 0;
  for (size_t at = 0; at < good.size(); at++) {
    std::string bad = good;
    bad[at] = static_cast<char>(~bad[at]);
    const auto opened = Blobs::open(bad, 6);
    refused += opened ? 0 : 1;
    for (size_t i = 0; opened && i < 6; i++) CHECK(opened.value()[i].size() <= bad.size());
  }
  CHECK(refused >= 8 + 6 * 8);  // at least those in the head and at the ends
}

// The kernel adds a seal where vm.memfd_noexec is set.
TEST_CASE("blobs in a file may have more seals than they need, but not fewer") {
  const Blobs packed = Blobs::pack(introductions(2, 3));
  const Fd file = Blobs::to_file(packed.bytes());
  REQUIRE(file);
  REQUIRE(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL) == 0);
  const auto mapped = Blobs::map(file, 6);
  REQUIRE(mapped);
  CHECK(mapped.value().bytes() == packed.bytes());
  const Fd open(memfd_create("no seals", MFD_CLOEXEC));
  CHECK(!Blobs::map(open, 6));
}
