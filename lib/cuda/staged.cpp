#include "cuda/staged.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "cuda/moves.h"
#include "exec/pause.h"

namespace tutti::cuda {
namespace {

// What the stream copies, and how the operation looks on the host.
struct Staging {
  struct Piece {
    char* device;
    size_t bytes;
    size_t offset;  // in the staging buffer
  };
  Operation operation;
  std::vector<Piece> in, out;
  char* buffer = nullptr;
  size_t bytes = 0;

  size_t add(std::vector<Piece>& list, void* device, size_t n) {
    const size_t offset = bytes;
    if (n > 0) list.push_back({static_cast<char*>(device), n, offset});
    bytes += (n + 255) / 256 * 256;
    return offset;
  }
};

char* place(char* buffer, size_t offset) {
  return buffer == nullptr ? nullptr : buffer + offset;
}

void* writable(const void* memory) {
  return const_cast<void*>(memory);  // of an input, which is only copied from
}

void stage_messages(Staging& staging, char* buffer) {
  auto messages = std::make_shared<std::vector<Message>>(*staging.operation.messages);
  for (Message& m : *messages) {
    const size_t bytes = m.count * dtype_bytes(m.dtype);
    const size_t offset = staging.add(m.sends ? staging.in : staging.out, m.data, bytes);
    m.data = place(buffer, offset);
  }
  staging.operation.messages = messages;
}

// An output that has gaps comes in by blocks, because what lies between them is not the operation's.
void stage_output(Staging& staging, char* output, size_t offset, int rank, int n_ranks, size_t elem_bytes) {
  for (const Move& move : moves_of(staging.operation, n_ranks))
    if (move.to == kAllRanks || move.to == rank)
      staging.out.push_back(
          {output + move.to_elem * elem_bytes, move.elems * elem_bytes, offset + move.to_elem * elem_bytes});
}

// `buffer` may be null, to see how much is needed.
Staging stage(const Operation& operation, int rank, int n_ranks, char* buffer) {
  Staging staging;
  staging.operation = operation;
  staging.buffer = buffer;
  if (operation.collective == Collective::kSendRecv) {
    stage_messages(staging, buffer);
    return staging;
  }
  const size_t elem_bytes = dtype_bytes(operation.dtype);
  const Extent extent = extent_of(operation, rank, n_ranks);
  const size_t input = staging.add(staging.in, writable(operation.input), extent.input * elem_bytes);
  staging.operation.input = place(buffer, input);
  const size_t output = staging.bytes;
  staging.bytes += extent.output * elem_bytes;
  stage_output(staging, static_cast<char*>(operation.output), output, rank, n_ranks, elem_bytes);
  staging.operation.output = place(buffer, output);
  if (operation.scalar_at != nullptr) {
    staging.bytes = (staging.bytes + 255) / 256 * 256;
    const size_t at = staging.add(staging.in, writable(operation.scalar_at), elem_bytes);
    staging.operation.scalar_at = place(buffer, at);
  }
  return staging;
}

// What is divided at the same places on all ranks, so that a piece is on its way through the host while the GPU copies
// those beside it.
std::vector<Operation> pieces_of(const Operation& operation) {
  constexpr uint64_t kPieceBytes = 4 << 20;
  const Collective what = operation.collective;
  const uint64_t elem_bytes = dtype_bytes(operation.dtype), piece = kPieceBytes / elem_bytes;
  const bool has_pieces =
      what == Collective::kAllReduce || what == Collective::kReduce || what == Collective::kBroadcast;
  if (!has_pieces || operation.count <= piece) return {operation};
  std::vector<Operation> pieces;
  for (uint64_t at = 0; at < operation.count; at += piece) {
    Operation& part = pieces.emplace_back(operation);
    part.count = std::min(piece, operation.count - at);
    if (part.input != nullptr) part.input = static_cast<const char*>(part.input) + at * elem_bytes;
    if (part.output != nullptr) part.output = static_cast<char*>(part.output) + at * elem_bytes;
  }
  return pieces;
}

class Staged final : public Way {
 public:
  Staged(Host& host, Port& port) : host_(host), port_(port) {}
  ~Staged() override;
  Result<void> start();

  bool takes(const Operation&) const override { return true; }
  Result<void> submit(const Operation& operation, StreamRef stream) override;

 private:
  Result<char*> buffer_of(size_t bytes);
  uint32_t announce(const Operation& operation, bool stays);
  void serve();
  void run(uint32_t number);

  Host& host_;
  Port& port_;
  // In memory of the host that streams write to and wait for: the number of the operation that is to run, and of the
  // one that has run; 0 in between.
  std::atomic<uint32_t>* request_ = nullptr;
  std::atomic<uint32_t>* answer_ = nullptr;
  char* buffer_ = nullptr;
  size_t buffer_bytes_ = 0;
  std::vector<void*> kept_;  // outgrown buffers: operations under way, or in a graph, may use them
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Waiting {
    Operation operation;
    bool stays;  // in a graph that may be launched again
  };
  std::map<uint32_t, Waiting> operations_;
  uint32_t last_number_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

Result<void> Staged::start() {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  TUTTI_TRY_ASSIGN(void* words, port_.allocate_host(4096));
  request_ = new (words) std::atomic<uint32_t>(0);
  answer_ = new (static_cast<char*>(words) + 2048) std::atomic<uint32_t>(0);
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& e) {
    return system_error("starting the thread of a CUDA communicator (see ulimit -u)", e.code().value());
  }
  return {};
}

Staged::~Staged() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  for (void* memory : kept_) port_.free_host(memory);
  if (buffer_ != nullptr) port_.free_host(buffer_);
  if (request_ != nullptr) port_.free_host(request_);
}

// One buffer for all, because operations follow each other. One that is outgrown may still be in use.
Result<char*> Staged::buffer_of(size_t bytes) {
  if (bytes <= buffer_bytes_) return buffer_;
  const size_t more = std::max(bytes, buffer_bytes_ * 2);
  TUTTI_TRY_ASSIGN(void* memory, port_.allocate_host(more));
  if (buffer_ != nullptr) kept_.push_back(buffer_);
  buffer_ = static_cast<char*>(memory);
  buffer_bytes_ = more;
  return buffer_;
}

uint32_t Staged::announce(const Operation& operation, bool stays) {
  uint32_t number;
  {
    const std::lock_guard lock(mutex_);
    number = ++last_number_ == 0 ? ++last_number_ : last_number_;
    operations_[number] = {operation, stays};
  }
  changed_.notify_all();
  return number;
}

// The pieces' halves of the buffer alternate. In the stream's order: the input of piece k comes, piece k - 1 has run,
// piece k is asked for, and while it runs the output of k - 1 goes and the input of k + 1 comes.
Result<void> Staged::submit(const Operation& operation, StreamRef stream) {
  TUTTI_TRY_ASSIGN(const bool capturing, port_.is_capturing(stream));
  const auto pieces = pieces_of(operation);
  const size_t bytes = (stage(pieces[0], host_.rank(), host_.n_ranks(), nullptr).bytes + 255) / 256 * 256;
  TUTTI_TRY_ASSIGN(char* buffer, buffer_of(std::max<size_t>(pieces.size() > 1 ? 2 * bytes : bytes, 1)));
  auto* const request = reinterpret_cast<uint32_t*>(request_);
  auto* const answer = reinterpret_cast<uint32_t*>(answer_);
  Staging before;
  const auto take_out = [&]() -> Result<void> {
    for (const auto& piece : before.out)
      TUTTI_TRY(port_.copy(piece.device, before.buffer + piece.offset, piece.bytes, stream));
    return {};
  };
  std::vector<WordOperation> words;
  for (size_t k = 0; k < pieces.size(); k++) {
    Staging staging = stage(pieces[k], host_.rank(), host_.n_ranks(), buffer + k % 2 * bytes);
    for (const auto& piece : staging.in)
      TUTTI_TRY(port_.copy(staging.buffer + piece.offset, piece.device, piece.bytes, stream));
    const uint32_t number = announce(staging.operation, capturing);
    words.push_back({request, number});
    TUTTI_TRY(port_.words(words.data(), static_cast<int>(words.size()), stream));
    TUTTI_TRY(take_out());
    before = std::move(staging);
    words = {{answer, number, true}, {answer, 0}};
  }
  TUTTI_TRY(port_.words(words.data(), static_cast<int>(words.size()), stream));
  return take_out();
}

// While operations are under way, or may come from a graph, only looking tells.
void Staged::serve() {
  constexpr int64_t kSpinNs = 200'000, kSleepNs = 50'000;
  int64_t idle_since = now_ns();
  for (;;) {
    if (const uint32_t number = request_->exchange(0, std::memory_order_acq_rel); number != 0) {
      run(number);
      answer_->store(number, std::memory_order_release);
      idle_since = now_ns();
      continue;
    }
    if (now_ns() - idle_since < kSpinNs) {
      pause_cpu();
      continue;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !operations_.empty(); });
    if (stopping_) return;  // whoever destroys this has waited for the device
    changed_.wait_for(lock, std::chrono::nanoseconds(kSleepNs));
  }
}

void Staged::run(uint32_t number) {
  Operation operation;
  {
    const std::lock_guard lock(mutex_);
    const auto found = operations_.find(number);
    if (found == operations_.end()) return;
    operation = found->second.operation;
    if (!found->second.stays) operations_.erase(found);
  }
  (void)host_.run_on_host(operation);  // an error breaks the communicator, which tells everybody
}

}  // namespace

Result<std::unique_ptr<Way>> make_staged(Host& host, Port& port) {
  auto staged = std::make_unique<Staged>(host, port);
  TUTTI_TRY(staged->start());
  return std::unique_ptr<Way>(std::move(staged));
}

}  // namespace tutti::cuda
