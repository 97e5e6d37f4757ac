// What arrives while ranks meet, fed to the functions that read it: handshakes, frames of the rendezvous, addresses,
// unique ids, and launchers' answers.
#include "base/dial.h"
#include "fuzz.h"
#include "group/blobs.h"
#include "group/bootstrap.h"
#include "group/bootstrap_connect.h"
#include "group/bootstrap_wire.h"
#include "group/pmi.h"
#include "group/tcp_store.h"

namespace tutti {
namespace {

using fuzz::bytes_of;
using fuzz::expect;
using fuzz::Input;
using fuzz::SocketPair;

const Key kKey = derive_key("a secret", 8);
const std::string kStoreKey = "key";

// One direction of a connection: bytes from one end go to the other, except that one byte is changed and the end
// may come early.
class Wire {
 public:
  explicit Wire(Input& in) : changed_at_(in.byte()), change_(in.byte()), ends_at_(in.byte()) {}

  // True if anything went through.
  bool carry(int from, int to) {
    char bytes[256];
    const ssize_t n = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    for (ssize_t i = 0; i < n; i++, at_++) {
      if (at_ == ends_at_) ::shutdown(to, SHUT_WR);
      if (at_ >= ends_at_) continue;
      if (at_ == changed_at_) bytes[i] = static_cast<char>(bytes[i] ^ change_);
      [[maybe_unused]] const ssize_t sent = ::send(to, bytes + i, 1, MSG_NOSIGNAL);
    }
    return n > 0;
  }
  bool is_faithful_to(size_t bytes) const { return ends_at_ >= bytes && (change_ == 0 || changed_at_ >= bytes); }

 private:
  size_t changed_at_, at_ = 0;
  uint8_t change_;
  size_t ends_at_;
};

// Nobody gets in through a connection that alters bytes.
void shake_hands(Input& in) {
  SocketPair client_end, server_end;
  Wire to_server(in), to_client(in);
  const bool same_secret = in.byte() != 1;
  const auto kind = static_cast<HelloKind>(1 + in.below(4));
  Handshake client = Handshake::client(same_secret ? kKey : derive_key("another", 7), kind, 3, 5);
  Handshake server = Handshake::server(kKey, HelloKind::kControl, 5);
  Handshake::Status here = Handshake::Status::kPending, there = Handshake::Status::kPending;
  for (bool moved = true; moved;) {
    here = client.advance(client_end.ours.get());
    there = server.advance(server_end.ours.get());
    moved = to_server.carry(client_end.theirs.get(), server_end.theirs.get());
    moved = to_client.carry(server_end.theirs.get(), client_end.theirs.get()) || moved;
  }
  constexpr size_t kProofBytes = 32, kChallengeBytes = 16;
  const bool honest = same_secret && kind == HelloKind::kControl;
  const bool faithful =
      to_server.is_faithful_to(sizeof(Hello) + kProofBytes) && to_client.is_faithful_to(kChallengeBytes);
  const bool answers = to_client.is_faithful_to(kChallengeBytes + kProofBytes);
  expect((there == Handshake::Status::kDone) == (honest && faithful), "exactly who knows the secret gets in");
  if (there == Handshake::Status::kDone) expect(server.hello().from_rank == 3, "the hello is the client's");
  expect((here == Handshake::Status::kDone) == (honest && faithful && answers), "a client trusts no impostor");
}

// Garbage never authenticates.
void babble(Input& in) {
  const bool is_server = in.byte() % 2 == 0;
  Handshake h =
      is_server ? Handshake::server(kKey, HelloKind::kTcp, 0) : Handshake::client(kKey, HelloKind::kTcp, 1, 0);
  SocketPair sockets;
  Handshake::Status status = Handshake::Status::kPending;
  while (!in.done()) {
    sockets.say(in.text(1 + in.byte()));
    status = h.advance(sockets.ours.get());
    expect(status != Handshake::Status::kDone, "garbage is no proof");
  }
  sockets.hang_up();
  if (status == Handshake::Status::kPending) status = h.advance(sockets.ours.get());
  expect(status == Handshake::Status::kFailed && !h.why().empty(), "the end is noticed and has a reason");
}

void read_frame(FrameKind kind, const std::string& body) {
  if (kind == FrameKind::kReport) {
    const Error error = unpack_report(body);
    expect(error.code > Code::kSuccess && error.code <= Code::kTimeout, "a report has a code that is an error");
  }
  for (const int n_ranks : {0, 1, 3, 1000}) {
    const auto blobs = Blobs::open(body, n_ranks);
    expect(!blobs || blobs.value().size() == static_cast<size_t>(n_ranks), "there is a blob for every rank");
    for (size_t i = 0; blobs && i < blobs.value().size(); i++)
      expect(blobs.value()[i].size() <= body.size(), "the blobs come from the body");
  }
}

// Frames come out as they went in, however they are cut.
void read_frames(Input& in) {
  SocketPair sockets;
  FrameReader reader;
  std::string said, understood;
  for (bool closed = false; !closed;) {
    if (in.done()) sockets.hang_up();
    const std::string_view part = in.text(1 + in.byte());
    sockets.say(part);
    said += part;
    for (;;) {
      const FrameReader::Status status =
          reader.read([&](void* to, size_t room) { return recv_some(sockets.ours.get(), nullptr, to, room); });
      if (status != FrameReader::Status::kFrame) {
        closed = status != FrameReader::Status::kPending;
        break;
      }
      const std::string body = reader.take_body();
      expect(body.size() <= kMaxBlobBytes, "no frame is larger than a blob");
      understood += make_frame(reader.kind(), body, reader.rank());
      read_frame(reader.kind(), body);
    }
  }
  expect(said.substr(0, understood.size()) == understood, "what was understood was said");
}

void read_contact(Input& in) {
  const std::string bytes(in.rest());
  const auto contact = Contact::from_bytes(bytes);
  if (!contact) return;
  for (const Address& address : contact->addresses) expect(!address.to_string().empty(), "an address has a name");
  const auto again = Contact::from_bytes(contact->to_bytes());
  expect(again && again->to_bytes() == contact->to_bytes(), "a contact is the same after it has travelled");
}

void read_unique_id(Input& in) {
  const auto parts = unpack_unique_id(in.take<UniqueId>());
  if (!parts) return expect(parts.error().code == Code::kInvalidArgument, "bytes that are no id are a wrong argument");
  const auto again = unpack_unique_id(pack_unique_id(parts.value()));
  expect(again && again.value().addresses.size() == parts.value().addresses.size(), "no address is lost in packing");
  for (const Address& address : root_candidates(parts.value())) expect(address.length > 0, "a candidate is an address");
}

// A launcher that sends any answer.
void ask_pmi(Input& in) {
  SocketPair sockets;
  sockets.say(in.rest());
  sockets.hang_up();
  auto pmi = Pmi::init(sockets.ours.get(), Deadline::after_seconds(5));
  if (!pmi) return expect(!pmi.error().message.empty(), "a failure has a reason");
  [[maybe_unused]] const auto put = pmi.value().put("key", std::string(300, 'v'));
  [[maybe_unused]] const auto barrier = pmi.value().barrier();
  const auto got = pmi.value().get("key");
  expect(!got || got.value().size() < 64 << 10, "a value has an end");
  [[maybe_unused]] const auto finalized = pmi.value().finalize();
}

// A store that sends any answer.
void ask_store(Input& in) {
  static Address address;
  static const Fd listener = [] {
    auto resolved = resolve("127.0.0.1", 0);
    expect(static_cast<bool>(resolved), "loopback has an address");
    auto fd = listen_on(resolved.value().front(), &address);
    expect(static_cast<bool>(fd), "loopback can be listened on");
    return std::move(fd).value();
  }();
  auto store = TcpStore::connect("127.0.0.1", address.port(), Deadline::after_seconds(5));
  expect(static_cast<bool>(store), "the store can be reached");
  const Fd server = accept_one(listener.get());
  const std::string_view answer = in.rest();
  [[maybe_unused]] const ssize_t n = ::send(server.get(), answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(server.get(), SHUT_WR);
  [[maybe_unused]] const auto set = store.value().set(kStoreKey, "value");
  const auto got = store.value().get(kStoreKey);
  expect(!got || (answer.size() >= 9 && got.value() == answer.substr(9, got.value().size())), "a value was sent");
}

using Target = void (*)(Input&);
constexpr Target kTargets[] = {shake_hands, babble, read_frames, read_contact, read_unique_id, ask_pmi, ask_store};

template <size_t N>
std::string for_target(const std::string& bytes) {
  static_assert(N < std::size(kTargets));
  return std::string(1, static_cast<char>(N)) + bytes;
}

// The bytes in pieces of up to 100, each after its length less one.
std::string cut(const std::string& bytes) {
  std::string all;
  for (size_t at = 0; at < bytes.size(); at += 100) {
    const std::string part = bytes.substr(at, 100);
    all += static_cast<char>(part.size() - 1);
    all += part;
  }
  return all;
}

Contact some_contact() {
  Contact contact;
  for (const char* name : {"127.0.0.1", "::1"})
    if (const auto found = resolve(name, 4000)) contact.addresses.push_back(found.value().front());
  return contact;
}

std::string some_hello() {
  SocketPair sockets;
  Handshake client = Handshake::client(kKey, HelloKind::kTcp, 1, 0);
  client.advance(sockets.theirs.get());
  std::string hello(sizeof(Hello), '\0');
  expect(::recv(sockets.ours.get(), hello.data(), hello.size(), 0) == sizeof(Hello), "a client says hello");
  return hello;
}

}  // namespace
}  // namespace tutti

using namespace tutti;  // NOLINT

std::vector<std::string> fuzz_seeds() {
  const std::string faithful = {'\x00', '\x00', '\xff', '\x00', '\x00', '\xff', '\x00', '\x01'};
  const std::string blobs(Blobs::pack(std::vector<std::string>{"one", "", "three"}).bytes());
  const std::string frames = make_join_frame(make_join(1, 3, 5000)) + make_frame(FrameKind::kBlob, "blob") +
                             make_frame(FrameKind::kAll, blobs) +
                             make_frame(FrameKind::kReport, pack_report({Code::kTimeout, "rank 1 never joined", 1}));
  const std::string pmi =
      "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\ncmd=maxes kvsname_max=256 keylen_max=64 "
      "vallen_max=1024\ncmd=my_kvsname kvsname=kvs_1\ncmd=put_result rc=0\ncmd=barrier_out\ncmd=get_result rc=0 "
      "value=abcd\ncmd=finalize_ack\n";
  UniqueIdParts parts{some_contact().addresses, {}};
  return {for_target<0>(faithful),
          for_target<0>({'\x39', '\x10', '\xff', '\x00', '\x00', '\xff', '\x00', '\x01'}),
          for_target<0>({'\x00', '\x00', '\xff', '\x20', '\x01', '\xff', '\x00', '\x01'}),
          for_target<0>({'\x00', '\x00', '\xff', '\x00', '\x00', '\xff', '\x01', '\x01'}),
          for_target<1>('\x00' + cut(some_hello() + std::string(32, 'p'))),
          for_target<1>('\x01' + cut(std::string(49, 'c'))),
          for_target<2>(cut(frames)),
          for_target<3>(some_contact().to_bytes()),
          for_target<4>(bytes_of(pack_unique_id(parts))),
          for_target<5>(pmi),
          for_target<6>(std::string(1, '\0') + bytes_of(uint64_t{5}) + "value")};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  Input in(data, bytes);
  kTargets[in.below(std::size(kTargets))](in);
  return 0;
}
