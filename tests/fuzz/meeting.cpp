// What a rank sends once it is let in: to the root of the rendezvous, in its introduction, and over its control
// connection. These need a thread on the other side, so they are slow.
#include <poll.h>

#include <thread>

#include "comm/communicator.h"
#include "fuzz.h"
#include "group/bootstrap.h"
#include "group/bootstrap_connect.h"
#include "group/bootstrap_wire.h"
#include "group/peers.h"

namespace tutti {
namespace {

using fuzz::expect;
using fuzz::Input;
using fuzz::say;

constexpr double kLimitSeconds = 2;    // when waiting for a rank that never comes
constexpr double kEnoughSeconds = 20;  // when waiting for what must come

// Everything that arrives until the other side closes.
std::string hear(const Fd& fd) {
  std::string heard;
  char bytes[4096];
  for (const Deadline deadline = Deadline::after_seconds(kEnoughSeconds);;) {
    pollfd polled{fd.get(), POLLIN, 0};
    ::poll(&polled, 1, 100);
    const ssize_t n = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) heard.append(bytes, static_cast<size_t>(n));
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return heard;
    expect(!deadline.passed(), "the root ends");
  }
}

// A root answers ranks that send anything with frames, or not at all.
void join_a_root(Input& in) {
  const auto id = start_root(Deadline::after_seconds(kLimitSeconds));
  expect(static_cast<bool>(id), "a root starts");
  const UniqueIdParts parts = unpack_unique_id(id.value()).value();
  const Key key = derive_key(parts.secret, sizeof parts.secret);
  std::vector<Fd> ranks;
  for (int rank = 0; rank < 2; rank++) {
    auto connection = connect_to_root(parts, key, rank, Deadline::after_seconds(kEnoughSeconds));
    expect(static_cast<bool>(connection), "who knows the secret is let in");
    ranks.push_back(std::move(connection.value().fd));
  }
  while (!in.done()) {
    const uint8_t length = in.byte();
    say(ranks[length % 2], in.text(length / 2));
  }
  for (const Fd& rank : ranks) ::shutdown(rank.get(), SHUT_WR);
  for (const Fd& rank : ranks) {
    std::string heard = hear(rank);
    FrameHeader header;
    while (!heard.empty()) {
      expect(heard.size() >= sizeof header, "frames are whole");
      memcpy(&header, heard.data(), sizeof header);
      expect(header.bytes <= heard.size() - sizeof header, "frames are whole");
      expect(header.kind == FrameKind::kAll || header.kind == FrameKind::kReport, "frames are answers");
      heard.erase(0, sizeof header + header.bytes);
    }
  }
}

// A rank that introduces itself with anything, and is silent afterwards, makes no communicator.
void introduce(Input& in) {
  const Deadline deadline = Deadline::after_seconds(kLimitSeconds);
  const auto id = start_root(deadline);
  expect(static_cast<bool>(id), "a root starts");
  std::thread peer([&, blob = std::string(in.rest())] {
    auto bootstrap = Bootstrap::join(id.value(), 1, 2, deadline);
    if (bootstrap) [[maybe_unused]]
      const auto all = bootstrap.value().all_gather(blob);
  });
  CommOptions options;
  const auto comm = Communicator::create(id.value(), 0, 2, options, deadline);
  peer.join();
  expect(!comm && !comm.error().message.empty(), "there is no communicator, and a reason");
}

// A neighbour sends anything over its control connection and leaves: it has left, or the group has failed.
void control(Input& in) {
  const Key key = derive_key("a secret", 8);
  auto listener = Listener::open();
  expect(static_cast<bool>(listener), "a rank can listen");
  Fd connection;
  std::thread neighbour([&, contact = listener.value().contact] {
    Dialer dialer({key, HelloKind::kControl, 1, 0}, contact);
    while (dialer.advance() == Dialer::Status::kPending) {
      pollfd polled{dialer.fd(), dialer.events(), 0};
      ::poll(&polled, 1, 10);
    }
    connection = dialer.take();
  });
  const auto member = [](int rank) {
    return PeerWatch::Member{"rank " + std::to_string(rank), Contact(), "somewhere"};
  };
  auto watch = PeerWatch::create({0, 2, 2, key, 0, {}, member, {1}}, std::move(listener.value().fds),
                                 Deadline::after_seconds(kEnoughSeconds));
  neighbour.join();
  expect(static_cast<bool>(watch), "the control connection is made");
  while (!in.done()) say(connection, in.text(1 + in.byte()));
  connection.reset();
  const Deadline deadline = Deadline::after_seconds(kEnoughSeconds);
  while (!watch.value()->ending().failed() && !watch.value()->departed(1)) {
    ::poll(nullptr, 0, 1);
    expect(!deadline.passed(), "the end of a connection is noticed");
  }
  if (!watch.value()->ending().failed()) return;
  const Error failure = watch.value()->ending().failure();
  expect(failure.code > Code::kSuccess && failure.code <= Code::kTimeout, "a failure has a code that is an error");
  expect(failure.culprit_rank >= -1 && failure.culprit_rank < 2, "a failure names a rank of the group, or none");
}

using Target = void (*)(Input&);
constexpr Target kTargets[] = {join_a_root, introduce, control};

// As one rank sends it to the root, in pieces whose length fits a byte.
std::string by_rank(int rank, const std::string& bytes) {
  std::string script;
  for (size_t at = 0; at < bytes.size(); at += 100) {
    const std::string part = bytes.substr(at, 100);
    script += static_cast<char>(2 * part.size() + static_cast<size_t>(rank));
    script += part;
  }
  return script;
}

// Rank 0's introduction when it meets rank 1.
std::string genuine_introduction() {
  const Deadline deadline = Deadline::after_seconds(10);
  const auto id = start_root(deadline);
  expect(static_cast<bool>(id), "a root starts");
  std::thread first([&] { [[maybe_unused]] const auto comm = Communicator::create(id.value(), 0, 2, {}, deadline); });
  auto bootstrap = Bootstrap::join(id.value(), 1, 2, deadline);
  expect(static_cast<bool>(bootstrap), "who knows the secret is let in");
  const auto all = bootstrap.value().all_gather("");
  first.join();
  expect(static_cast<bool>(all), "the ranks hear each other");
  return all.value()[0];
}

std::string control_frame(uint32_t type, const std::string& payload) {
  const std::string frame = fuzz::bytes_of(type) + fuzz::bytes_of(static_cast<uint32_t>(payload.size())) + payload;
  return static_cast<char>(frame.size() - 1) + frame;
}

std::string notice(int32_t origin, int32_t code, int32_t culprit) {
  const std::string sentence = "rank 1 died";
  return control_frame(1, fuzz::bytes_of(origin) + fuzz::bytes_of(code) + fuzz::bytes_of(culprit) +
                              fuzz::bytes_of(static_cast<uint32_t>(sentence.size())) + sentence);
}

}  // namespace
}  // namespace tutti

using namespace tutti;  // NOLINT

std::vector<std::string> fuzz_seeds() {
  const std::string blob = make_frame(FrameKind::kBlob, "blob");
  std::string good;
  for (const int rank : {0, 1}) good += by_rank(rank, make_join_frame(make_join(rank, 2, 5000)) + blob);
  return {
      '\0' + good,
      '\0' + by_rank(0, make_join_frame(make_join(0, 2, 5000))) + by_rank(1, make_join_frame(make_join(0, 3, 5000))),
      '\0' + by_rank(0, make_join_frame(make_join(1, 1000, 50)) + blob + blob),
      '\1' + std::string("an introduction that is none"),
      '\1' + genuine_introduction(),
      '\2' + control_frame(2, fuzz::bytes_of(uint64_t{12})),
      '\2' + notice(1, 6, 1),
      '\2' + notice(0, 0, 7),
      '\2' + control_frame(3, fuzz::bytes_of(int32_t{1})) + control_frame(7, ""),
      '\2' + control_frame(5, fuzz::bytes_of(uint32_t{2}) + std::string(12, '\0')) +
          control_frame(6, std::string(16, 'n')),
      '\2' + control_frame(4, "a question"),
      '\2' + control_frame(1, "")};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  Input in(data, bytes);
  kTargets[in.below(std::size(kTargets))](in);
  return 0;
}
