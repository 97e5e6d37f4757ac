// net: links over a network plugin that was made for NCCL. Such a plugin has connections, and sends what the other side
// has posted a receive for; it has nothing to sleep on, and does not report a peer's death. So each link has an
// authenticated TCP connection beside it:
//
//   sender                       receiver
//                 <---           Invitation: where its listener is, and a number chosen at random
//   (the plugin connects)
//   ready         --->
//                 <---           ready, so that the link is there at both ends or at neither
//   at the end: how many messages have left   --->
//
// Messages are numbered from that number on, so that data of a foreign connection to the listener is recognised. Header
// and payload are one message to the plugin. The receiver keeps a receive posted for each free slot, as many as the
// plugin takes; while there is none, the plugin holds the sender back. A rank that sleeps naps, for growing times. One
// thread per endpoint.
//
// What the plugin interface prevents: memory cannot be exposed, because header and payload are one piece of memory and
// no send can be cancelled; and a message waits for a nap to end.
#include <algorithm>
#include <cstdlib>
#include <list>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "transports/adapter.h"
#include "transports/net/plugin.h"

namespace tutti {
namespace net {
namespace {

constexpr uint64_t kFirstNapNs = 20'000, kLongestNapNs = 1'000'000;
constexpr size_t kPageBytes = 4096;
constexpr char kReady = 'R';

// There is one in a process. Set once, before any endpoint; never freed, because links may outlive main.
const Plugin* the_plugin = nullptr;

struct Invitation {
  Plugin::Handle handle;
  uint64_t first_number;
};

struct Header {
  tuttiTag tag;
  uint64_t number;
  uint32_t bytes;
  uint32_t unused[5];
};
static_assert(sizeof(Header) == 64);

class Half : public LinkHalf {
 public:
  ~Half() override {
    if (region_ != nullptr) the_plugin->unpin(comm_.get(), region_);
    comm_.reset();  // before the memory that its receives may still write to
  }
  void wait_end() override { look_out_.note_sleep(); }

 protected:
  Half(const tuttiLinkConfig& config, SideConnection peer) : config_(config), peer_(std::move(peer)) {}

  // The comm is closed with the link, even if this fails.
  Result<void> open(Plugin::Comm comm, uint64_t first_number) {
    comm_ = std::move(comm);
    first_number_ = first_number;
    const size_t bytes = (config_.slots * slot_bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
    memory_.reset(static_cast<char*>(aligned_alloc(kPageBytes, bytes)));
    if (memory_ == nullptr)
      return Error{Code::kSystemError, format("a net link with rank %d: no memory for %u slots of %u bytes",
                                              config_.peer, config_.slots, config_.slot_bytes)};
    requests_.resize(config_.slots);
    TUTTI_TRY_ASSIGN(region_, the_plugin->pin(comm_.get(), memory_.get(), bytes));
    return {};
  }

  size_t slot_bytes() const { return sizeof(Header) + config_.slot_bytes; }
  Header* slot(uint64_t message) const {
    return reinterpret_cast<Header*>(memory_.get() + message % config_.slots * slot_bytes());
  }
  void*& request(uint64_t message) { return requests_[message % config_.slots]; }

  // There is nothing to wait for but the time to look again, at growing intervals while nothing moves.
  void nap(tuttiWait* wait) {
    nap_ns_ = std::clamp(2 * nap_ns_, kFirstNapNs, kLongestNapNs);
    wait->at_most_ns = nap_ns_;
  }
  // Whether the peer has gone, as of the last look.
  bool is_gone() { return look_out_.is_time() ? peer_.look() : peer_.closed; }
  void fail(const std::string& why) {
    if (failure_) return;
    const char* gone = "it closed the connection: its process ended or its communicator was destroyed";
    const std::string text = format("net link with rank %d: %s", config_.peer, peer_.look() ? gone : why.c_str());
    failure_ = Error{Code::kRemoteError, text, config_.peer};
  }
  template <class T>
  bool got(const Result<T>& result) {
    if (!result) fail(result.error().message);
    return static_cast<bool>(result);
  }

  tuttiLinkConfig config_;
  SideConnection peer_;
  uint64_t nap_ns_ = 0;
  Plugin::Comm comm_{nullptr, nullptr};  // once connected
  uint64_t first_number_ = 0;
  void* region_ = nullptr;
  std::optional<Error> failure_;

 private:
  std::unique_ptr<char, void (*)(void*)> memory_{nullptr, free};
  std::vector<void*> requests_;  // by slot
  LookOut look_out_;
};

class SendLink final : public Half {
 public:
  SendLink(int device, const Dialer::Call& call, const Contact& peer, const tuttiLinkConfig& config)
      : Half(config, {}), device_(device), dialer_(call, peer) {}
  ~SendLink() override {
    if (region_ != nullptr) peer_.say(done_);
  }

  Result<bool> poll() override {
    if (!failure_ && !ready_)
      if (const auto advanced = advance_connect(); !advanced) failure_ = advanced.error();
    if (!failure_ && ready_) submit();
    if (!failure_ && peer_.socket && is_gone()) fail("");
    if (failure_) return *failure_;
    return ready_;
  }
  void fill(tuttiLinkState* state) override { state->unsent = unsent(); }
  tuttiRoom acquire(const void*, uint32_t, tuttiPosting, void** at) {
    if (!ready_ || failure_) return TUTTI_NO_ROOM;
    if (is_full()) submit();
    *at = slot(published_) + 1;
    return is_full() ? TUTTI_NO_ROOM : TUTTI_SLOT;
  }
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
    if (data != nullptr) return 0;
    *slot(published_) = {tag, first_number_ + published_, bytes, {}};
    published_++;
    if (!failure_) submit();
    return 1;
  }
  bool wait_begin(tuttiWait* wait) override {
    if (!peer_.socket) return !failure_ && wait_for(dialer_, wait);
    if (ready_ && !failure_) submit();
    nap(wait);
    return !failure_ && (!ready_ || unsent() > 0);
  }

 private:
  bool is_full() const { return published_ - done_ == config_.slots; }
  uint32_t unsent() const { return static_cast<uint32_t>(published_ - done_); }

  Result<void> advance_connect() {
    TUTTI_TRY_ASSIGN(const bool connected,
                     take_connection(dialer_, &peer_.socket, config_.peer, "over TCP, to set up a net link",
                                     " (TUTTI_SOCKET_IFNAME chooses the networks)"));
    if (!connected) return {};
    peer_.look();
    if (!invitation_) {
      Invitation invitation;
      if (!peer_.take(&invitation)) return {};
      invitation_ = invitation;
    }
    if (comm_ == nullptr) {
      auto comm = the_plugin->connect(device_, &invitation_->handle);
      if (!got(comm)) return *failure_;
      if (comm.value() == nullptr) return {};
      TUTTI_TRY(open(std::move(comm).value(), invitation_->first_number));
      peer_.say(kReady);
    }
    char said = 0;
    ready_ = peer_.take(&said);
    return {};
  }

  void submit() {
    int bytes = 0;
    for (; done_ < begun_; done_++, nap_ns_ = 0) {
      const auto done = the_plugin->test(request(done_), &bytes);
      if (!got(done)) return;
      if (!done.value()) break;
    }
    for (; begun_ < published_ && begun_ - done_ < kMaxRequests; begun_++, nap_ns_ = 0) {
      Header* message = slot(begun_);
      const auto begun = the_plugin->send(comm_.get(), message, sizeof *message + message->bytes, region_);
      if (!got(begun) || begun.value() == nullptr) return;
      request(begun_) = begun.value();
    }
  }

  int device_;
  Dialer dialer_;
  std::optional<Invitation> invitation_;
  bool ready_ = false;
  uint64_t published_ = 0, begun_ = 0, done_ = 0;
};

class RecvLink final : public Half {
 public:
  static Result<std::unique_ptr<LinkHalf>> create(const tuttiLinkConfig& config, SideConnection peer, Plugin::Comm comm,
                                                  uint64_t first_number) {
    auto link = std::unique_ptr<RecvLink>(new RecvLink(config, std::move(peer)));
    TUTTI_TRY(link->open(std::move(comm), first_number));
    link->keep_receives();
    link->peer_.say(kReady);
    return std::unique_ptr<LinkHalf>(std::move(link));
  }

  // Messages that have arrived are delivered before the link's end is reported.
  Result<bool> poll() override {
    if (!failure_) {
      const bool closed = is_gone();
      pull();
      peer_.take(&sent_);
      if (closed && sent_ <= received_) fail("");
    }
    if (failure_ && received_ == released_) return *failure_;
    return true;
  }
  bool peek(tuttiMessage* message) {
    if (released_ == received_) return false;
    const Header* header = slot(released_);
    *message = {header + 1, header->bytes, header->tag};
    return true;
  }
  void release() {
    released_++;
    if (!failure_) keep_receives();
  }
  bool wait_begin(tuttiWait* wait) override {
    if (!failure_) pull();
    nap(wait);
    return !failure_ && !peer_.closed && received_ == released_;
  }

 private:
  using Half::Half;

  void pull() {
    keep_receives();
    for (; received_ < posted_; received_++, nap_ns_ = 0) {
      int bytes = 0;
      const auto done = the_plugin->test(request(received_), &bytes);
      if (!got(done) || !done.value()) return;
      const Header& header = *slot(received_);
      if (bytes < static_cast<int>(sizeof header) || header.number != first_number_ + received_ ||
          header.bytes != static_cast<size_t>(bytes) - sizeof header)
        return fail("it sent something that is not a message of this link: another program's data, or a bug");
    }
    keep_receives();
  }
  void keep_receives() {
    for (; posted_ - released_ < config_.slots && posted_ - received_ < kMaxRequests; posted_++) {
      const auto posted = the_plugin->receive(comm_.get(), slot(posted_), slot_bytes(), region_);
      if (!got(posted) || posted.value() == nullptr) return;
      request(posted_) = posted.value();
    }
  }

  uint64_t posted_ = 0, received_ = 0, released_ = 0;
  uint64_t sent_ = 0;  // all messages, as the sender says when it ends
};

}  // namespace

class NetEndpoint : public DiallingEndpoint {
 public:
  static Result<std::unique_ptr<NetEndpoint>> open(const tuttiEndpointConfig& config) {
    TUTTI_TRY_ASSIGN(Listener listener, Listener::open());
    return std::unique_ptr<NetEndpoint>(new NetEndpoint(config, std::move(listener)));
  }

  std::string address() const {
    return ByteWriter().put(kMagic).put_string(the_plugin->name()).put_string(short_contact()).take();
  }

  std::string unreachable_because(std::string_view peer) const {
    return contact_of(peer) ? "" : format("it does not offer the plugin %s", the_plugin->name());
  }

  Result<std::unique_ptr<LinkHalf>> connect(const tuttiLinkConfig& config, std::string_view peer) const {
    const auto contact = contact_of(peer);
    if (!contact)
      return Error{Code::kInvalidArgument,
                   format("this is not the address of a net endpoint of %s", the_plugin->name()), config.peer};
    return std::unique_ptr<LinkHalf>(new SendLink(device_, call_to(config), *contact, config));
  }

  std::unique_ptr<LinkHalf> accept(tuttiLinkConfig* config) {
    while (auto accepted = acceptor_.next()) incoming_.push_back({accepted->hello, {std::move(accepted->fd)}});
    return first_link(incoming_, "net link", [&](Incoming& incoming) { return take_in(incoming, config); });
  }

  Speed speed() const { return {the_plugin->latency_ns(device_), the_plugin->bytes_per_second(device_)}; }

 private:
  static constexpr uint32_t kMagic = 0x544e4554;

  // Authenticated, but the plugin has not accepted it or the sender is not ready.
  struct Incoming {
    Hello hello;
    SideConnection side;
    Plugin::Comm listener{nullptr, nullptr}, comm{nullptr, nullptr};
    uint64_t first_number = 0;
  };

  // Ranks use a host's devices round-robin.
  NetEndpoint(const tuttiEndpointConfig& config, Listener listener)
      : DiallingEndpoint(config, HelloKind::kNet, std::move(listener)),
        device_(config.rank % the_plugin->n_devices()) {}

  static std::optional<Contact> contact_of(std::string_view bytes) {
    ByteReader reader(bytes);
    if (reader.get<uint32_t>() != kMagic || reader.get_string() != the_plugin->name()) return std::nullopt;
    const std::string contact = reader.get_string();
    return reader.ok() && reader.at_end() ? Contact::from_bytes(contact) : std::nullopt;
  }

  Result<void> invite(Incoming& incoming) const {
    Invitation invitation{};
    random_bytes(&invitation.first_number, sizeof invitation.first_number);
    incoming.first_number = invitation.first_number;
    TUTTI_TRY_ASSIGN(incoming.listener, the_plugin->listen(device_, &invitation.handle));
    if (incoming.side.say(invitation)) return {};
    return Error{Code::kRemoteError, "it did not accept the invitation to connect"};
  }

  // Null until the plugin has connected and the sender is ready.
  Result<std::unique_ptr<LinkHalf>> take_in(Incoming& incoming, tuttiLinkConfig* config) const {
    TUTTI_TRY_ASSIGN(*config, link_config_of(incoming.hello, n_ranks_));
    if (!incoming.listener) TUTTI_TRY(invite(incoming));
    if (!incoming.comm) {
      TUTTI_TRY_ASSIGN(incoming.comm, the_plugin->accept(incoming.listener));
    }
    char said = 0;
    const bool closed = incoming.side.look();
    if (incoming.comm && incoming.side.take(&said))
      return RecvLink::create(*config, std::move(incoming.side), std::move(incoming.comm), incoming.first_number);
    if (closed) return Error{Code::kRemoteError, "it closed its connection before it was ready"};
    return std::unique_ptr<LinkHalf>();
  }

  int device_;
  std::list<Incoming> incoming_;
};

constexpr tuttiTransport kNetTransport = make_transport<NetEndpoint, SendLink, RecvLink>("net");

}  // namespace net

Result<const tuttiTransport*> adapt_net_plugin(void* object) {
  TUTTI_TRY_ASSIGN(auto plugin, net::Plugin::load(object));
  if (plugin == nullptr) return static_cast<const tuttiTransport*>(nullptr);
  if (net::the_plugin != nullptr)
    return Error{
        Code::kInvalidUsage,
        format("the net plugin %s is already loaded, and only one can be loaded at a time", net::the_plugin->name())};
  net::the_plugin = plugin.release();
  return &net::kNetTransport;
}

}  // namespace tutti
