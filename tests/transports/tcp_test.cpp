// Guarantees that only tcp has: frames cut anywhere, small buffers, interfaces.
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "strangers.h"
#include "traffic.h"
#include "transports/tcp/tcp_link.h"

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr Ask kTcpAsk{1, 0, 4, 64 << 10};

// Rank 1 with a link from a rank 0 that is just a socket.
struct RawSender {
  Endpoint endpoint;
  Fd line;
  Link in;
};
RawSender raw_sender() {
  RawSender raw{open_endpoint(&kTcpTransport, 1).value(), Fd(), {}};
  const Door door = door_of(raw.endpoint);
  raw.line = knock(door);
  auto handshake = Handshake::client(key_of(7), door.kind, 0, 1, tcp::hello_args(kTcpAsk, 0, 1));
  REQUIRE(until([&] {
    handshake.advance(raw.line.get());
    return take(raw.endpoint, &raw.in);
  }));
  REQUIRE(until([&] { return handshake.advance(raw.line.get()) == Handshake::Status::kDone; }));
  return raw;
}

// Does the handshake of one of rank 0's connections: its index, and how many there are. Adds the links that are made.
Fd connect_as(Endpoint& to, uint32_t index, uint32_t n_connections, std::vector<Link>* links) {
  const Door door = door_of(to);
  Fd line = knock(door);
  auto handshake = Handshake::client(key_of(7), door.kind, 0, 1, tcp::hello_args(kTcpAsk, index, n_connections));
  REQUIRE(until([&] {
    if (Link made; take(to, &made)) links->push_back(std::move(made));
    return handshake.advance(line.get()) == Handshake::Status::kDone;
  }));
  return line;
}

std::string frame(const Traffic& traffic, uint64_t i) {
  const tcp::FrameHeader header = tcp::make_header(traffic.tag_of(i), i, traffic.bytes_of(i));
  std::string bytes(sizeof header + header.bytes, '\0');
  memcpy(bytes.data(), &header, sizeof header);
  traffic.fill(i, bytes.data() + sizeof header);
  return bytes;
}

}  // namespace

TEST_CASE("tcp: frames may be cut anywhere") {
  RawSender raw = raw_sender();
  const Traffic traffic{41, 60, 300};
  std::string stream;
  for (uint64_t i = 0; i < traffic.messages; i++) stream += frame(traffic, i);
  const size_t piece = GENERATE(1, 47, 48, 49, 1000, 1 << 20);
  INFO("pieces of " << piece);
  Receiver receiver(raw.in, traffic);
  for (size_t at = 0; at < stream.size(); at += piece) {
    REQUIRE(send_raw(raw.line, stream.data() + at, std::min(piece, stream.size() - at)));
    receiver.step();
  }
  CHECK(run(receiver) == "");
}

TEST_CASE("tcp: messages come where they are expected, if nothing of them has come before") {
  RawSender raw = raw_sender();
  const Traffic traffic{44, 200, 64 << 10};
  Receiver receiver(raw.in, traffic);
  for (uint64_t i = 0; i < traffic.messages; i++) {
    receiver.step();  // finds nothing, and expects the next one
    REQUIRE(send_raw(raw.line, frame(traffic, i).data(), frame(traffic, i).size()));
    REQUIRE(run(receiver, false, i + 1) == "");
  }
  CHECK(receiver.placed() > traffic.messages / 8);
  CHECK(receiver.placed() < traffic.messages / 2);
}

TEST_CASE("tcp: a message that is longer or shorter than the place where one is expected goes elsewhere") {
  RawSender raw = raw_sender();
  constexpr uint32_t kExpected = 100;
  const uint32_t bytes = GENERATE(99u, 101u, 300u);
  std::string place(400, '.');
  raw.in.post(0, place.data() + 50, kExpected);
  const tcp::FrameHeader header = tcp::make_header(tuttiTag{}, 0, bytes);
  REQUIRE(send_raw(raw.line, reinterpret_cast<const char*>(&header), sizeof header));
  REQUIRE(send_raw(raw.line, std::string(bytes, 'x').data(), bytes));
  tuttiMessage message{};
  REQUIRE(until([&] { return !poll_once(raw.in) || raw.in.peek(&message); }));
  REQUIRE(message.bytes == bytes);
  CHECK(std::string(static_cast<const char*>(message.data), bytes) == std::string(bytes, 'x'));
  CHECK(place == std::string(400, '.'));
}

TEST_CASE("tcp: a place is for one message, not for later ones of that length") {
  RawSender raw = raw_sender();
  constexpr uint32_t kBytes = 100;
  std::string place(kBytes, '.');
  raw.in.post(0, place.data(), kBytes);
  for (uint64_t i = 0; i < 2; i++) {
    const tcp::FrameHeader header = tcp::make_header(tuttiTag{}, i, kBytes);
    REQUIRE(send_raw(raw.line, &header, sizeof header));
    REQUIRE(send_raw(raw.line, std::string(kBytes, static_cast<char>('a' + i)).data(), kBytes));
    tuttiMessage message{};
    REQUIRE(until([&] { return !poll_once(raw.in) || raw.in.peek(&message); }));
    REQUIRE(message.bytes == kBytes);
    CHECK((message.data == place.data()) == (i == 0));
    raw.in.release();
  }
  CHECK(place == std::string(kBytes, 'a'));
}

TEST_CASE("tcp: nothing is written to where a message was expected once its operation has failed") {
  RawSender raw = raw_sender();
  std::string place(20000, '.');
  const tcp::FrameHeader header = tcp::make_header(tuttiTag{}, 0, 20000);
  const std::string payload(20000, 'x');
  raw.in.post(0, place.data(), 20000);
  // A part may have come before.
  const size_t before = GENERATE(size_t{0}, size_t{12000});
  if (before > 0) {
    REQUIRE(send_raw(raw.line, reinterpret_cast<const char*>(&header), sizeof header));
    REQUIRE(send_raw(raw.line, payload.data(), before));
    REQUIRE(until([&] { return !poll_once(raw.in) || place[before - 1] == 'x'; }));
  }
  raw.in.revoke();
  const std::string left = place;
  if (before == 0) REQUIRE(send_raw(raw.line, reinterpret_cast<const char*>(&header), sizeof header));
  REQUIRE(send_raw(raw.line, payload.data() + before, payload.size() - before));
  const auto error = poll_to_failure(raw.in);
  REQUIRE(error);
  CHECK(contains(error->text, "its operation has failed"));
  for (int i = 0; i < 100; i++) (void)poll_once(raw.in);
  tuttiMessage message{};
  CHECK_FALSE(raw.in.peek(&message));
  CHECK(place == left);
}

TEST_CASE("tcp: several connections: one that is blocked does not hold up the others") {
  const Setting several("TUTTI_TCP_CONNECTIONS", "3");
  Pair p = make_pair(&kTcpTransport, Ask{1, 0, 8, 64 << 10});
  const Traffic traffic{45, times(2000), 64 << 10};
  Sender sender(p.out, traffic);
  Receiver receiver(p.in, traffic);
  // The receiver pauses until the sender is stuck, again and again.
  CHECK(run_together({&sender, &receiver}, [&](Side& side) { return &side == &sender ? 1000u : 3u; }) == "");
}

TEST_CASE("tcp: a connection that ends in the middle of a message gives an error after the whole ones") {
  RawSender raw = raw_sender();
  const Traffic traffic{42, 20, 64 << 10};
  std::string stream;
  for (uint64_t i = 0; i < traffic.messages; i++) stream += frame(traffic, i);
  // 1: half a header follows; 2: a header; 3: a header and half its payload.
  const size_t more = GENERATE(0, 1, 20, 48, 49, 5000, 30000);
  INFO(more << " bytes of a message");
  const tcp::FrameHeader header = tcp::make_header(tuttiTag{}, traffic.messages, 40000);
  std::string last(sizeof header + header.bytes, 'z');
  memcpy(last.data(), &header, sizeof header);
  stream += last.substr(0, more);
  Receiver receiver(raw.in, traffic);
  for (size_t at = 0; at < stream.size(); at += 100000) {
    REQUIRE(send_raw(raw.line, stream.data() + at, std::min<size_t>(100000, stream.size() - at)));
    while (receiver.step()) {
    }
  }
  raw.line.reset();
  CHECK(run(receiver) == "");
  const auto error = poll_to_failure(raw.in);
  REQUIRE(error);
  CHECK(error->code == tuttiRemoteError);
  CHECK(contains(error->text, "rank 0"));
  CHECK(contains(error->text, "in the middle of a message") == (more > 0));
}

TEST_CASE("tcp: what has come before a connection ended is there as long as nobody has taken it") {
  RawSender raw = raw_sender();
  const Traffic traffic{48, 3, 4096};
  for (uint64_t i = 0; i < traffic.messages; i++)
    REQUIRE(send_raw(raw.line, frame(traffic, i).data(), frame(traffic, i).size()));
  raw.line.reset();
  tuttiMessage message{};
  REQUIRE(until([&] { return raw.in.peek(&message) || !poll_once(raw.in); }));
  for (int i = 0; i < 200; i++) {
    REQUIRE(poll_once(raw.in));
    usleep(50);
  }
  Receiver receiver(raw.in, traffic);
  CHECK(run(receiver) == "");
  check_gone(raw.in, "rank 0");
}

// A message of two pieces, over two connections that are just sockets. One has brought half a piece when the other
// brings the whole message; the rest of that piece comes when its slot belongs to another message.
TEST_CASE("tcp: several connections: what comes late of a message does not go into the next one in its slot") {
  RawSender raw{open_endpoint(&kTcpTransport, 1).value(), Fd(), {}};
  const Door door = door_of(raw.endpoint);
  std::vector<Fd> lines;
  for (uint32_t i = 0; i < 2; i++) {
    lines.push_back(knock(door));
    auto handshake = Handshake::client(key_of(7), door.kind, 0, 1, tcp::hello_args(kTcpAsk, i, 2));
    REQUIRE(until([&] {
      take(raw.endpoint, &raw.in);
      return handshake.advance(lines.back().get()) == Handshake::Status::kDone;
    }));
  }
  REQUIRE(until([&] { return raw.in.is_made() || take(raw.endpoint, &raw.in); }));
  constexpr uint32_t kPiece = 32 << 10, kWhole = 2 * kPiece;
  const auto send_piece = [&](const Fd& line, uint64_t number, uint32_t piece, char with, uint32_t bytes) {
    const tcp::FrameHeader header = tcp::make_header(tuttiTag{}, number, kWhole, piece);
    return send_raw(line, reinterpret_cast<const char*>(&header), sizeof header) &&
           send_raw(line, std::string(bytes, with).data(), bytes);
  };
  tuttiMessage message{};
  const auto receive = [&] { return until([&] { return !poll_once(raw.in) || raw.in.peek(&message); }); };
  const auto text = [&] { return std::string(static_cast<const char*>(message.data), message.bytes); };
  REQUIRE(send_piece(lines[0], 0, 0, 'l', kPiece / 2));
  for (int i = 0; i < 100; i++) REQUIRE(poll_once(raw.in));
  for (uint64_t number = 0; number <= kTcpAsk.slots; number++) {
    for (uint32_t piece = 0; piece < 2; piece++)
      REQUIRE(send_piece(lines[1], number, piece, static_cast<char>('a' + number), kPiece));
    REQUIRE(receive());
    REQUIRE(message.bytes == kWhole);
    CHECK(text() == std::string(kWhole, static_cast<char>('a' + number)));
    if (number < kTcpAsk.slots) raw.in.release();
  }
  REQUIRE(send_raw(lines[0], std::string(kPiece / 2, 'l').data(), kPiece / 2));
  REQUIRE(send_piece(lines[0], kTcpAsk.slots + 1, 0, 'z', kPiece));
  for (int i = 0; i < 200; i++) {
    REQUIRE(poll_once(raw.in));
    usleep(50);
  }
  CHECK(text() == std::string(kWhole, static_cast<char>('a' + kTcpAsk.slots)));
}

TEST_CASE("tcp: several connections: pieces of one message that say different lengths fail the link") {
  auto endpoint = open_endpoint(&kTcpTransport, 1);
  REQUIRE(endpoint);
  std::vector<Link> links;
  std::vector<Fd> lines;
  for (uint32_t i = 0; i < 2; i++) lines.push_back(connect_as(endpoint.value(), i, 2, &links));
  Link in;
  if (links.empty()) REQUIRE(until([&] { return take(endpoint.value(), &in); }));
  if (!links.empty()) in = std::move(links[0]);
  constexpr uint32_t kPiece = 32 << 10;
  const std::string payload(kPiece, 'x');
  for (uint32_t piece = 0; piece < 2; piece++) {
    const tcp::FrameHeader header = tcp::make_header(tuttiTag{}, 0, 2 * kPiece - 64 * piece, piece);
    REQUIRE(send_raw(lines[piece], &header, sizeof header));
    REQUIRE(send_raw(lines[piece], payload.data(), kPiece - 64 * piece));
  }
  tuttiMessage message{};
  REQUIRE(until([&] { return !poll_once(in) || in.peek(&message); }));
  const Health health = poll_once(in);
  REQUIRE_FALSE(health);
  CHECK(contains(health.error.text, "rank 0"));
  CHECK(contains(health.error.text, "not a message"));
}

TEST_CASE("tcp: what is no frame fails the link") {
  RawSender raw = raw_sender();
  const uint32_t too_large = (64 << 10) + 1;
  const int kind = GENERATE(0, 1, 2, 3, 4);
  std::string bytes(64, 'G');
  tcp::FrameHeader header = tcp::make_header(tuttiTag{}, 0, too_large);
  if (kind == 1) header.bytes = 0;
  if (kind == 2) header = tcp::make_header(tuttiTag{}, 1, 0);       // not the next message
  if (kind == 4) header = tcp::make_header(tuttiTag{}, 0, 100, 1);  // a second piece of a message of one piece
  if (kind > 0) bytes.assign(reinterpret_cast<const char*>(&header), sizeof header);
  REQUIRE(send_raw(raw.line, bytes.data(), bytes.size()));
  const auto error = poll_to_failure(raw.in);
  REQUIRE(error);
  CHECK(contains(error->text, "rank 0"));
  CHECK(contains(error->text, "not a message"));
  tuttiMessage message{};
  CHECK_FALSE(raw.in.peek(&message));
}

TEST_CASE("tcp: a connection that no link has a place for is refused, and disturbs none") {
  struct Caller {
    uint32_t index, n_connections;
    bool link_is_there;
  };
  const Caller caller = GENERATE(Caller{0, 17, true}, Caller{2, 2, true}, Caller{3 | tcp::kAgain, 8, true},
                                 Caller{0 | tcp::kAgain, 1, false});
  INFO("connection " << (caller.index & ~tcp::kAgain) << " of " << caller.n_connections);
  RawSender raw = raw_sender();
  if (!caller.link_is_there) close(raw.in);
  std::vector<Link> links;
  const Fd line = connect_as(raw.endpoint, caller.index, caller.n_connections, &links);
  CHECK(until(Deadline::after_seconds(5), [&] {
    if (Link made; take(raw.endpoint, &made)) links.push_back(std::move(made));
    return !links.empty() || hung_up(line.get());
  }));
  CHECK(links.empty());
  if (!caller.link_is_there) return;
  const Traffic traffic{49, 1, 300};
  REQUIRE(send_raw(raw.line, frame(traffic, 0).data(), frame(traffic, 0).size()));
  Receiver receiver(raw.in, traffic);
  CHECK(run(receiver) == "");
}

namespace {

// A rank with a link to a peer that is just a socket, with small buffers if wanted.
struct RawReceiver {
  Endpoint endpoint;
  Link out;
  Fd line;
};
RawReceiver raw_receiver(const Ask& ask = kTcpAsk, int buffer_bytes = 0) {
  const int rank = 1 - ask.peer;
  Impostor impostor = listen_as_impostor(&kTcpTransport);
  // Connections inherit it, and a small window with it.
  if (buffer_bytes > 0) setsockopt(impostor.listener.get(), SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  Acceptor acceptor(only(std::move(impostor.listener)), key_of(7), HelloKind::kTcp, ask.peer);
  RawReceiver raw{open_endpoint(&kTcpTransport, rank).value(), {}, Fd()};
  auto link = raw.endpoint.connect(ask, impostor.address);
  REQUIRE(link);
  raw.out = std::move(link).value();
  std::optional<Acceptor::Accepted> accepted;
  REQUIRE(until(
      [&] { return poll_once(raw.out) && (accepted || (accepted = acceptor.next())) && poll_once(raw.out).ready; }));
  raw.line = std::move(accepted->fd);
  return raw;
}

}  // namespace

TEST_CASE("tcp: messages larger than the buffers between leave piece by piece") {
  RawReceiver raw = raw_receiver(Ask{1, 0, 4, 1 << 20}, 4096);
  const Traffic traffic{43, kSanitized ? 20u : 40u, 1 << 20};
  Sender sender(raw.out, traffic);
  std::string expected, got;
  for (uint64_t i = 0; i < traffic.messages; i++) expected += frame(traffic, i);
  bool blocked = false;
  REQUIRE(until([&] {
    while (sender.step()) {
    }
    blocked = blocked || raw.out.unsent() > 0;
    char piece[60001];
    const ssize_t n = ::recv(raw.line.get(), piece, sizeof piece, MSG_DONTWAIT);
    if (n > 0) got.append(piece, static_cast<size_t>(n));
    return got.size() >= expected.size() || !sender.trouble().empty();
  }));
  CHECK(sender.trouble() == "");
  CHECK(sender.done());
  CHECK(blocked);
  CHECK((got == expected));
}

TEST_CASE("tcp: what an operation has exposed is not sent any more once that has failed") {
  constexpr uint32_t kBytes = 4 << 20;
  RawReceiver raw = raw_receiver(Ask{1, 0, 2, kBytes}, 4096);
  std::string memory(kBytes, 'x'), got;
  REQUIRE(raw.out.acquire() != nullptr);
  REQUIRE(raw.out.publish(memory.data(), kBytes, tuttiTag{}));
  REQUIRE(raw.out.unsent() == 1);
  raw.out.revoke();
  std::fill(memory.begin(), memory.end(), 'y');
  // The peer takes whatever comes, while the sender polls its link, and then until the sender has gone.
  std::string piece(100'000, '\0');
  const auto receive = [&] {
    const ssize_t n = ::recv(raw.line.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (n > 0) got.append(piece, 0, static_cast<size_t>(n));
    return n;
  };
  std::optional<tuttiTransportError> error;
  for (int i = 0; i < 300; i++) {
    const Health health = poll_once(raw.out);
    if (!health) error = health.error;
    while (receive() > 0) continue;
  }
  REQUIRE(error);
  CHECK(contains(error->text, "its operation has failed"));
  close(raw.out);
  REQUIRE(until([&] {
    const ssize_t n = receive();
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  }));
  CHECK(got.size() < kBytes);
  CHECK(got.find('y', sizeof(tcp::FrameHeader)) == std::string::npos);
}

TEST_CASE("tcp: a receiver that hangs up or talks fails the link") {
  // A lower rank may be answered on its connection: tcp_pair_test.cpp.
  RawReceiver raw = raw_receiver(Ask{0});
  const bool talks = GENERATE(false, true);
  for (int i = 0; i < 200; i++) REQUIRE(poll_once(raw.out).ready);
  if (talks) REQUIRE(send_raw(raw.line, "hello", 5));
  if (!talks) raw.line.reset();
  const auto error = poll_to_failure(raw.out);
  REQUIRE(error);
  CHECK(contains(error->text, "rank 0"));
}

TEST_CASE("tcp: TUTTI_SOCKET_IFNAME decides which addresses peers are given") {
  {
    const Setting lo("TUTTI_SOCKET_IFNAME", "=lo");
    auto a = open_endpoint(&kTcpTransport, 0), b = open_endpoint(&kTcpTransport, 1);
    REQUIRE((a && b));
    const auto contact = Contact::from_bytes(b.value().address());
    REQUIRE(contact);
    REQUIRE_FALSE(contact->addresses.empty());
    for (const Address& address : contact->addresses) CHECK(address.is_loopback());
    Link out, in;
    CHECK(join(a.value(), kTcpAsk, b.value(), &out, &in));
  }
  const Setting none("TUTTI_SOCKET_IFNAME", "no-such-if");
  const auto refused = open_endpoint(&kTcpTransport, 0);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kInvalidUsage);
  CHECK(contains(refused.error().message, "TUTTI_SOCKET_IFNAME=no-such-if"));
}

TEST_CASE("tcp: every address that an endpoint gives leads to it, IPv6 too") {
  auto a = open_endpoint(&kTcpTransport, 0), b = open_endpoint(&kTcpTransport, 1);
  REQUIRE((a && b));
  const auto contact = Contact::from_bytes(b.value().address());
  REQUIRE(contact);
  bool v6_loopback = false;
  for (const Address& address : contact->addresses) {
    INFO(address.to_string());
    v6_loopback = v6_loopback || (address.family() == AF_INET6 && address.is_loopback());
    auto out = a.value().connect(kTcpAsk, Contact{contact->host, {address}}.to_bytes());
    REQUIRE(out);
    Link in;
    CHECK(until([&] { return !poll_once(out.value()) || take(b.value(), &in); }));
    CHECK(until([&] { return !poll_once(out.value()) || poll_once(out.value()).ready; }));
    CHECK(poll_once(out.value()));
  }
  if (!v6_loopback) WARN("skipped: IPv6 loopback is not configured");
}

TEST_CASE("tcp: the next address is tried when one leads nowhere, and all are told of in the end") {
  auto a = open_endpoint(&kTcpTransport, 0), b = open_endpoint(&kTcpTransport, 1);
  REQUIRE((a && b));
  Contact contact = *Contact::from_bytes(b.value().address());
  Address closed = door_of(b.value()).address;
  {
    Address bound;
    closed.set_port(0);
    auto listener = listen_on(closed, &bound);
    REQUIRE(listener);
    closed = bound;
  }
  contact.addresses.insert(contact.addresses.begin(), closed);
  auto out = a.value().connect(kTcpAsk, contact.to_bytes());
  REQUIRE(out);
  Link in;
  CHECK(until([&] { return !poll_once(out.value()) || take(b.value(), &in); }));
  CHECK(until([&] { return poll_once(out.value()).ready; }));

  auto lost = a.value().connect(kTcpAsk, Contact{contact.host, {closed, closed}}.to_bytes());
  REQUIRE(lost);
  const auto error = poll_to_failure(lost.value());
  REQUIRE(error);
  INFO(error->text);
  CHECK(contains(error->text, closed.to_string()));
  CHECK(contains(error->text, "rank 1"));
}
