// A transport between ranks of one process that delivers to the memory of made-up devices, as a network device would:
// it accesses that memory only through its dmabuf, which it maps at another address. Between post and release, and from
// publish until the bytes have arrived, the CPU cannot touch the memory at its own address: an access crashes.
// MADE_UP_NETWORK injects failures: "refuses 1" (registrations of rank 1), "loses" (published data do not arrive).
#include <sys/mman.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>

#include "base/fd.h"
#include "transports/adapter.h"

using namespace tutti;

namespace {

bool is_told(const std::string& what) {
  const char* told = getenv("MADE_UP_NETWORK");
  return told != nullptr && what == told;
}

// A registered region, mapped through its dmabuf.
class Region {
 public:
  Region(uintptr_t begin, uintptr_t end, const Fd& dmabuf, uint64_t offset)
      : begin_(begin),
        bytes_(end - begin),
        alias_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, dmabuf.get(), static_cast<off_t>(offset))) {}
  ~Region() {
    if (is_there()) munmap(alias_, bytes_);
  }
  Region(const Region&) = delete;
  bool is_there() const { return alias_ != MAP_FAILED; }
  char* alias(const void* data) const {
    return static_cast<char*>(alias_) + (reinterpret_cast<uintptr_t>(data) - begin_);
  }
  void hide() { change(1); }
  void show() { change(-1); }

 private:
  void change(int by) {
    const std::lock_guard lock(mutex_);
    hidden_ += by;
    mprotect(reinterpret_cast<void*>(begin_), bytes_, hidden_ > 0 ? PROT_NONE : PROT_READ | PROT_WRITE);
  }
  const uintptr_t begin_;
  const size_t bytes_;
  void* const alias_;
  std::mutex mutex_;
  int hidden_ = 0;
};

struct Pipe {
  struct Sent {
    std::vector<char> payload;
    uint32_t bytes = 0;
    tuttiTag tag{};
    std::shared_ptr<Region> from;  // where the payload of a delivery is
    const void* data = nullptr;
    bool is_there = true;
  };
  std::mutex mutex;
  std::deque<Sent> messages;
  uint32_t slots = 0;
  bool is_required = false, has_ended = false;
  void* to = nullptr;
  uint32_t bytes = 0;
};

struct MadeUpEndpoint;

class SendHalf final : public LinkHalf {
 public:
  SendHalf(MadeUpEndpoint& endpoint, std::shared_ptr<Pipe> pipe, int peer, uint32_t slot_bytes)
      : endpoint_(endpoint), pipe_(std::move(pipe)), peer_(peer), slot_(slot_bytes) {}
  ~SendHalf() override { revoke(); }
  Result<bool> poll() override;
  bool wait_begin(tuttiWait*) override { return false; }
  void revoke() override {
    const std::lock_guard lock(pipe_->mutex);
    pipe_->has_ended = true;
    for (auto& region : exposed_) region->show();
    exposed_.clear();
  }
  tuttiRoom acquire(const void*, uint32_t, tuttiPosting posting, void** at) {
    const std::lock_guard lock(pipe_->mutex);
    *at = slot_.data();
    if (pipe_->messages.size() >= pipe_->slots) return TUTTI_NO_ROOM;
    if (posting != TUTTI_REQUIRED) return TUTTI_SLOT;
    // Only the next message must have a place.
    return pipe_->is_required && pipe_->messages.empty() ? TUTTI_EXPOSED : TUTTI_NO_ROOM;
  }
  int publish(const void* data, uint32_t bytes, const tuttiTag& tag);
  void fill(tuttiLinkState* state) override {
    const std::lock_guard lock(pipe_->mutex);
    const auto left = static_cast<size_t>(
        std::count_if(pipe_->messages.begin(), pipe_->messages.end(), [](const auto& m) { return !m.is_there; }));
    for (; exposed_.size() > left; exposed_.pop_front()) exposed_.front()->show();
    state->unsent = static_cast<uint32_t>(left);
  }

 private:
  MadeUpEndpoint& endpoint_;
  const std::shared_ptr<Pipe> pipe_;
  const int peer_;
  std::vector<char> slot_;
  std::deque<std::shared_ptr<Region>> exposed_;
};

class RecvHalf final : public LinkHalf {
 public:
  RecvHalf(MadeUpEndpoint& endpoint, std::shared_ptr<Pipe> pipe, int peer)
      : endpoint_(endpoint), pipe_(std::move(pipe)), peer_(peer) {}
  ~RecvHalf() override { revoke(); }
  Result<bool> poll() override;
  bool wait_begin(tuttiWait*) override { return false; }
  void revoke() override {
    const std::lock_guard lock(pipe_->mutex);
    pipe_->has_ended = true;
    if (region_ != nullptr) region_->show();
    region_ = nullptr;
  }
  bool post(uint32_t ahead, void* to, uint32_t bytes, bool required);
  bool peek(tuttiMessage* message) {
    const std::lock_guard lock(pipe_->mutex);
    if (pipe_->messages.empty()) return false;
    Pipe::Sent& next = pipe_->messages.front();
    *message = {next.payload.data(), next.bytes, next.tag};
    if (next.from == nullptr) return true;
    const bool fits = next.bytes == pipe_->bytes;
    if (fits && !next.is_there && !is_told("loses"))
      memcpy(region_->alias(pipe_->to), next.from->alias(next.data), next.bytes);
    next.is_there = true;
    message->data = fits ? pipe_->to : nullptr;
    return true;
  }
  void release() {
    const std::lock_guard lock(pipe_->mutex);
    pipe_->messages.pop_front();
    if (region_ != nullptr) region_->show();
    region_ = nullptr;
    pipe_->is_required = false;
  }

 private:
  MadeUpEndpoint& endpoint_;
  const std::shared_ptr<Pipe> pipe_;
  const int peer_;
  std::shared_ptr<Region> region_;
};

struct Incoming {
  std::shared_ptr<Pipe> pipe;
  tuttiLinkConfig config;
};

struct Table {
  std::mutex mutex;
  uint64_t last = 0;
  std::map<uint64_t, std::deque<Incoming>> incoming;  // by endpoint
};
Table& table() {
  static auto* t = new Table;
  return *t;
}

struct MadeUpEndpoint {
  static Result<std::unique_ptr<MadeUpEndpoint>> open(const tuttiEndpointConfig& config) {
    auto endpoint = std::make_unique<MadeUpEndpoint>();
    endpoint->config = config;
    const std::lock_guard lock(table().mutex);
    endpoint->number = ++table().last;
    table().incoming[endpoint->number];
    return endpoint;
  }
  ~MadeUpEndpoint() {
    const std::lock_guard lock(table().mutex);
    table().incoming.erase(number);
  }
  std::string address() const { return std::to_string(getpid()) + " " + std::to_string(number); }
  std::string unreachable_because(std::string_view peer) const {
    return atoi(std::string(peer).c_str()) == getpid() ? "" : "it is another process";
  }
  Result<std::unique_ptr<LinkHalf>> connect(const tuttiLinkConfig& link, std::string_view peer) {
    auto pipe = std::make_shared<Pipe>();
    pipe->slots = link.slots;
    tuttiLinkConfig theirs = link;
    theirs.peer = config.rank;
    const std::string address(peer);
    const std::lock_guard lock(table().mutex);
    const auto to = table().incoming.find(strtoull(address.c_str() + address.find(' '), nullptr, 10));
    if (to == table().incoming.end()) return Error{Code::kRemoteError, "its endpoint is gone", link.peer};
    to->second.push_back({pipe, theirs});
    return std::unique_ptr<LinkHalf>(std::make_unique<SendHalf>(*this, std::move(pipe), link.peer, link.slot_bytes));
  }
  std::unique_ptr<LinkHalf> accept(tuttiLinkConfig* link) {
    const std::lock_guard lock(table().mutex);
    auto& queue = table().incoming[number];
    if (queue.empty()) return nullptr;
    const Incoming first = queue.front();
    queue.pop_front();
    *link = first.config;
    return std::make_unique<RecvHalf>(*this, first.pipe, first.config.peer);
  }
  Speed speed() const { return {1'000'000, 1000}; }
  Result<void> registers(const void* data, uint64_t bytes) {
    if (data == nullptr) regions.clear();
    if (is_told("refuses " + std::to_string(config.rank)))
      return Error{Code::kSystemError, "registering with a network that is made up: no memory"};
    if (region_of(data, bytes) != nullptr) return {};
    return Error{Code::kSystemError, "there is no dmabuf of this memory"};
  }
  std::shared_ptr<Region> region_of(const void* data, uint64_t bytes) {
    uintptr_t begin = 0, end = 0;
    const uint64_t found = config.memory_find(data, bytes, &begin, &end);
    if (found == 0) return nullptr;
    auto& region = regions[found];
    uint64_t offset = 0;
    if (region == nullptr) {
      const Fd dmabuf(config.memory_dmabuf(found, &offset));
      if (dmabuf) region = std::make_shared<Region>(begin, end, dmabuf, offset);
    }
    return region != nullptr && region->is_there() ? region : nullptr;
  }

  tuttiEndpointConfig config;
  uint64_t number = 0;
  std::map<uint64_t, std::shared_ptr<Region>> regions;
};

Result<bool> ended(Pipe& pipe, int peer, bool has_message) {
  const std::lock_guard lock(pipe.mutex);
  if (pipe.has_ended && !has_message) return Error{Code::kRemoteError, "it ended its link", peer};
  return true;
}

Result<bool> SendHalf::poll() {
  return ended(*pipe_, peer_, false);
}
Result<bool> RecvHalf::poll() {
  tuttiMessage ignored;
  return ended(*pipe_, peer_, peek(&ignored));
}

int SendHalf::publish(const void* data, uint32_t bytes, const tuttiTag& tag) {
  const std::lock_guard lock(pipe_->mutex);
  if (data == nullptr) {
    pipe_->messages.push_back({{slot_.begin(), slot_.begin() + bytes}, bytes, tag, nullptr, nullptr, true});
    return 1;
  }
  auto region = endpoint_.region_of(data, bytes);
  if (region == nullptr) return 0;
  region->hide();
  exposed_.push_back(region);
  pipe_->messages.push_back({{}, bytes, tag, std::move(region), data, false});
  return 1;
}

bool RecvHalf::post(uint32_t ahead, void* to, uint32_t bytes, bool required) {
  if (ahead > 0 || !required) return false;
  const std::lock_guard lock(pipe_->mutex);
  if (pipe_->is_required) return true;
  region_ = endpoint_.region_of(to, bytes);
  if (region_ == nullptr) return false;
  region_->hide();
  pipe_->is_required = true;
  pipe_->to = to;
  pipe_->bytes = bytes;
  return true;
}

constexpr tuttiTransport kTable = make_transport<MadeUpEndpoint, SendHalf, RecvHalf>("madeup");

}  // namespace

extern "C" __attribute__((visibility("default"))) const tuttiTransport* tuttiTransportPlugin(char*, size_t) {
  return &kTable;
}
