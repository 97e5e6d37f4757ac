// Ranks whose network devices access GPU memory directly (GPUDirect RDMA, by dmabuf), bypassing the CPU and host
// memory. Every rank has an arena of device memory that its network devices know. The stream copies the input there,
// which costs little on the device; a thread has the network move the bytes; the stream copies the output out. The
// user's own memory is not registered with network devices: it may be freed and reallocated without our knowledge, and
// what the network device had kept of it would then refer to someone else's memory.
//
// The network only moves bytes, and the GPU adds up. In a reduction every part is collected at one rank, which adds it
// up in the order of ranks in one kernel and passes the sum on: the scheme of Rabenseifner, "Optimization of Collective
// Reduction Operations" (ICCS 2004), with pairwise exchanges. A broadcast is likewise scattered and gathered (van de
// Geijn et al., "Interprocessor Collective Communication Library", 1994).
#include <algorithm>

#include "base/env.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "cuda/launcher.h"
#include "cuda/pieces.h"
#include "cuda/ways.h"

namespace tutti::cuda {
namespace {

constexpr size_t kArenaBytes = 64 << 20;
// Below this, rendezvous costs more than the way through host memory: two exchanges, each after a message with the
// address.
constexpr uint64_t kLeastBytes = 64 << 10;
enum Setting : int { kNever = 0, kWorthwhile = 1, kAlways = 2 };

// Device memory that network devices know.
class Arena {
 public:
  Arena(Host& host, Port& port) : host_(host), port_(port) {}
  ~Arena() {
    if (block_ != nullptr) {
      SharedMemory::remove(block_->id);
      host_.forget_direct();
    }
    if (memory_ != nullptr) port_.free(memory_);
  }
  Arena(const Arena&) = delete;

  // Devices export dmabufs of whole pages only.
  Result<void> allocate(size_t bytes) {
    constexpr size_t kPageBytes = 2 << 20;
    bytes_ = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    TUTTI_TRY_ASSIGN(memory_, port_.allocate(bytes_));
    TUTTI_TRY_ASSIGN(Fd dmabuf, port_.dmabuf_of(memory_, bytes_));
    block_ = SharedMemory::add_device(memory_, bytes_, std::move(dmabuf), 0);
    return {};
  }
  char* data() const { return static_cast<char*>(memory_); }
  size_t bytes() const { return bytes_; }

 private:
  Host& host_;
  Port& port_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<const SharedBlock> block_;
};

class Direct final : public Way {
 public:
  Direct(Host& host, Port& port, int device, const DeviceInfo& info, std::shared_ptr<Proxy> proxy, uint64_t least_bytes)
      : host_(host), port_(port), device_(device), info_(info), proxy_(std::move(proxy)), least_bytes_(least_bytes) {}

  // Local to this rank.
  Result<void> prepare() {
    if (!info_.waits_in_streams) return Error{Code::kCudaError, kNoWaits};
    TUTTI_TRY_ASSIGN(const char* memory, room(kArenaBytes));
    return host_.check_direct(memory, arenas_.back()->bytes());
  }

  // Collective. Checks that what a rank's network device writes to another rank's memory arrives there: every rank
  // writes a number of its own to every other rank.
  Result<void> try_out() {
    const int n_ranks = host_.n_ranks(), me = host_.rank();
    const auto place = [](int rank) { return static_cast<size_t>(rank) * Room::kAlignment / sizeof(uint32_t); };
    const auto number_of = [](int rank) { return 0x51ab0000u + static_cast<uint32_t>(rank); };
    std::vector<uint32_t> numbers(place(n_ranks));
    auto* const arena = reinterpret_cast<uint32_t*>(arenas_.front()->data());
    const auto copy_now = [&](void* to, const void* from) {
      const size_t bytes = numbers.size() * sizeof(uint32_t);
      return do_now(port_, [&](StreamRef stream) { return port_.copy(to, from, bytes, stream); });
    };
    numbers[place(me)] = number_of(me);
    TUTTI_TRY(copy_now(arena, numbers.data()));
    Operation operation;
    operation.collective = Collective::kAllGather;
    operation.count = sizeof(uint32_t);
    std::vector<Message> messages;
    for (int peer = 0; peer < n_ranks; peer++)
      if (peer != me)
        messages.insert(messages.end(), {{true, peer, arena + place(me), sizeof(uint32_t)},
                                         {false, peer, arena + place(peer), sizeof(uint32_t)}});
    TUTTI_TRY(move(operation, messages));
    TUTTI_TRY(copy_now(numbers.data(), arena));
    for (int peer = 0; peer < n_ranks; peer++)
      if (numbers[place(peer)] != number_of(peer))
        return Error{Code::kSystemError, format("data that rank %d writes to this GPU's memory does not arrive", peer)};
    return {};
  }

  const char* name() const override { return "from GPU to GPU by network devices (GPUDirect RDMA)"; }
  bool takes(const Operation& operation) const override {
    if (operation.collective == Collective::kSendRecv) return true;  // both ends have to decide alike
    if (operation.collective == Collective::kBarrier) return false;
    if (traits(operation.collective).reduces && host_.n_ranks() > kMaxPlaces) return false;
    return operation.count * dtype_bytes(operation.dtype) >= least_bytes_;
  }

  Result<void> submit(const Operation& operation, const Turn& turn) override {
    return operation.collective == Collective::kSendRecv ? submit_messages(operation, turn)
                                                         : submit_collective(operation, turn);
  }

 private:
  Result<char*> room(size_t bytes) {
    if (!arenas_.empty() && bytes <= arenas_.back()->bytes()) return arenas_.back()->data();
    auto arena = std::make_unique<Arena>(host_, port_);
    TUTTI_TRY(arena->allocate(std::max(bytes, arenas_.empty() ? 0 : 2 * arenas_.back()->bytes())));
    arenas_.push_back(std::move(arena));
    return arenas_.back()->data();
  }

  Result<void> submit_collective(const Operation& operation, const Turn& turn) {
    const DirectPlan plan(operation, host_.rank(), host_.n_ranks(), kArenaBytes);
    for (size_t i = 0; i < plan.pieces(); i++)
      TUTTI_TRY(submit_piece(plan, plan.piece(i, arenas_.front()->data()), operation, turn));
    return {};
  }

  // All ranks make the same exchanges, even those that have no messages in them.
  Result<void> submit_piece(const DirectPlan& plan, DirectPiece piece, const Operation& operation, const Turn& turn) {
    TUTTI_TRY(copy(piece.in, operation, plan.reduces() && operation.op == RedOp::kPreMulSum, turn.stream));
    if (!plan.has_two_exchanges()) piece.collect.insert(piece.collect.end(), piece.spread.begin(), piece.spread.end());
    std::vector<std::vector<Message>> phases{std::move(piece.collect)};
    if (plan.reduces()) {
      TUTTI_TRY(exchange(operation, std::exchange(phases, {}), turn));
      const uint32_t divisor = divisor_of(operation, host_.n_ranks());
      Launcher jobs(port_, info_, operation, turn.stream);
      for (const DirectPiece::Sum& sum : piece.sums) TUTTI_TRY(jobs.add(sum.elems, divisor, sum.from, {sum.to}));
      TUTTI_TRY(jobs.launch());
    }
    if (plan.has_two_exchanges()) phases.push_back(std::move(piece.spread));
    if (!phases.empty()) TUTTI_TRY(exchange(operation, std::move(phases), turn));
    return copy(piece.out, operation, false, turn.stream);
  }

  // All messages at once, because one may wait for what its receiver does after another one. So they need room for all.
  Result<void> submit_messages(const Operation& operation, const Turn& turn) {
    TUTTI_TRY_ASSIGN(char* memory, room(direct_messages_room(operation)));
    DirectPiece piece = direct_messages(operation, host_.rank(), memory);
    TUTTI_TRY(copy(piece.in, operation, false, turn.stream));
    if (!piece.collect.empty()) TUTTI_TRY(exchange(operation, {std::move(piece.collect)}, turn));
    return copy(piece.out, operation, false, turn.stream);
  }

  Result<void> copy(const std::vector<DirectPiece::Copy>& copies, const Operation& operation, bool scales,
                    StreamRef stream) {
    Launcher jobs(port_, info_, operation, stream);
    if (scales) jobs.scale(0, operation);
    for (const auto& [from, to, elems] : copies) TUTTI_TRY(jobs.add(elems, 0, {from}, {to}));
    return jobs.launch();
  }

  // What the stream has written is in device memory when the proxy sees the request, because a stream's words come
  // after all its earlier work; and what the network has written is visible before the stream sees the answer.
  Result<void> exchange(const Operation& operation, std::vector<std::vector<Message>> phases, const Turn& turn) {
    const uint32_t number = proxy_->announce(
        [this, operation, phases = std::move(phases)]() -> Result<void> {
          for (const auto& messages : phases) TUTTI_TRY(move(operation, messages));  // on the proxy's thread
          return {};
        },
        turn.is_captured);
    const WordOperation words[] = {proxy_->request(number), proxy_->answer(number), proxy_->take_back_answer()};
    return port_.words(words, 3, turn.stream);
  }

  Result<void> move(const Operation& operation, const std::vector<Message>& messages) {
    TUTTI_TRY_ASSIGN(const auto on_device, OnDevice::enter(port_, device_));
    TUTTI_TRY(host_.move_directly(operation, messages));
    return port_.flush_remote_writes();
  }

  Host& host_;
  Port& port_;
  const int device_;
  const DeviceInfo info_;
  const std::shared_ptr<Proxy> proxy_;
  const uint64_t least_bytes_;
  // Collectives use the first, messages the last, because operations run one after another; graphs may use the others.
  std::vector<std::unique_ptr<Arena>> arenas_;
};

// The smallest of the ranks' settings.
Result<int> agreed_setting(Host& host) {
  TUTTI_TRY_ASSIGN(const int64_t mine, env_int("TUTTI_GPU_DIRECT"));
  TUTTI_TRY_ASSIGN(const auto all, tell_all(host, std::string(1, static_cast<char>(mine))));
  int least = kAlways;
  for (const std::string& one : all) least = std::min<int>(least, one[0]);
  return least;
}

}  // namespace

Result<std::unique_ptr<Way>> make_direct(Host& host, Port& port, int device, const DeviceInfo& info,
                                         std::shared_ptr<Proxy> proxy, std::string* why) {
  TUTTI_TRY_ASSIGN(const int setting, agreed_setting(host));
  *why = "TUTTI_GPU_DIRECT=0 on some rank";
  if (setting == kNever) return std::unique_ptr<Way>();
  const uint64_t least_bytes = setting == kAlways ? 1 : kLeastBytes;
  auto direct = std::make_unique<Direct>(host, port, device, info, std::move(proxy), least_bytes);
  TUTTI_TRY_ASSIGN(*why, agree(host, direct->prepare()));
  if (!why->empty()) return std::unique_ptr<Way>();
  TUTTI_TRY(host.connect_direct());
  const auto tried = direct->try_out();
  if (host.broken()) return host.breakage();
  TUTTI_TRY_ASSIGN(*why, agree(host, tried));
  if (!why->empty()) return std::unique_ptr<Way>();
  log(LogLevel::kInfo,
      "CUDA device %d: network devices move data from GPU to GPU (GPUDirect RDMA) in operations of %llu bytes or more "
      "and in all messages",
      device, static_cast<unsigned long long>(least_bytes));
  return std::unique_ptr<Way>(std::move(direct));
}

}  // namespace tutti::cuda
