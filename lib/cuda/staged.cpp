// The way that is always available: through host memory and the host communicator. The stream copies the input to the
// host, asks a thread to run the operation, waits for its answer, and copies the output back. All of this is the same
// every time, so a captured graph can be replayed; what it needs is kept until the communicator is destroyed.
//
// Where ranks of one process share a GPU, a stream that waits may hold up another rank's (device_group.h), and some
// drivers let no stream wait for memory. There the call waits instead, by being called again, until the input has
// arrived and the operation has run.
#include <algorithm>
#include <chrono>
#include <thread>

#include "cuda/pieces.h"
#include "cuda/ways.h"
#include "exec/program.h"
#include "exec/quantised_cut.h"

namespace tutti::cuda {
namespace {

// What the stream copies, and how the operation looks on the host.
struct Staging {
  struct Piece {
    char *device, *host;
    size_t bytes;
  };
  Operation operation;
  Room room{nullptr};
  std::vector<Piece> in, out;
  // For quantised sums, whose kernels access the room directly.
  std::vector<SpanItem> quantise, dequantise;

  char* add(std::vector<Piece>& list, const void* device, size_t bytes) {
    char* const host = room.take(bytes);
    if (bytes > 0) list.push_back({as_base(device), host, bytes});
    return host;
  }
};

void stage_messages(Staging& staging) {
  auto messages = std::make_shared<std::vector<Message>>(*staging.operation.messages);
  for (Message& m : *messages)
    m.data = staging.add(m.sends ? staging.in : staging.out, m.data, m.count * dtype_bytes(m.dtype));
  staging.operation.messages = messages;
}

// The GPU quantises what goes to other ranks, and turns the sums into floats. The host adds up this rank's part, which
// it gets as floats.
void stage_quantised(Staging& staging, int rank, int n_ranks) {
  const Operation operation = staging.operation;
  const Wire wire = wire_of(operation.root);
  const QuantisedCut cut(operation.count, wire.block_elems, n_ranks);
  const auto float_at = [](const void* memory, size_t elem) {
    return memory == nullptr ? nullptr : as_base(memory) + elem * sizeof(float);
  };
  const size_t own = cut.begin(rank), own_bytes = cut.elems(rank) * sizeof(float);
  staging.operation.input = staging.add(staging.in, float_at(operation.input, own), own_bytes);
  if (operation.errors != nullptr) {
    char* const errors = staging.add(staging.in, float_at(operation.errors, own), own_bytes);
    staging.operation.errors = errors;
    if (own_bytes > 0) staging.out.push_back({float_at(operation.errors, own), errors, own_bytes});
  }
  char* const quantised = staging.room.take(cut.all_bytes());
  staging.operation.quantised = quantised;
  for (const auto& [begin, end] : {std::pair(size_t{0}, own), std::pair(cut.begin(rank + 1), size_t{operation.count})})
    staging.quantise.push_back({float_at(operation.input, begin), quantised + quantised_bytes(begin, wire.block_elems),
                                end - begin, float_at(operation.errors, begin)});
  staging.dequantise.push_back({quantised, operation.output, operation.count});
}

// `buffer` may be null, to find out how much is needed.
Staging stage(const Operation& operation, int rank, int n_ranks, char* buffer) {
  Staging staging{operation, Room(buffer)};
  if (operation.collective == Collective::kSendRecv) {
    stage_messages(staging);
    return staging;
  }
  if (operation.collective == Collective::kAllReduceQuantized && n_ranks > 1) {
    stage_quantised(staging, rank, n_ranks);
    return staging;
  }
  const size_t elem_bytes = dtype_bytes(operation.dtype);
  const Extent extent = extent_of(operation, rank, n_ranks);
  staging.operation.input = staging.add(staging.in, operation.input, extent.input * elem_bytes);
  char* const output = staging.room.take(extent.output * elem_bytes);
  staging.operation.output = output;
  // An output with gaps is copied by blocks, because what lies between them is not the operation's.
  for (const Move& move : moves_of(operation, n_ranks))
    if (const size_t at = move.to_elem * elem_bytes; move.to == kAllRanks || move.to == rank)
      staging.out.push_back({static_cast<char*>(operation.output) + at, output + at, move.elems * elem_bytes});
  if (operation.scalar_at != nullptr)
    staging.operation.scalar_at = staging.add(staging.in, operation.scalar_at, elem_bytes);
  return staging;
}

// Operations that are cut at the same places on all ranks, so that a piece is on its way through the host while the GPU
// copies its neighbours.
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
  Staged(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<Proxy> proxy, bool may_wait)
      : host_(host), port_(port), info_(info), proxy_(std::move(proxy)), may_wait_(may_wait), input_(port) {}
  // An operation that still runs on the host ends soon, because the group is broken by then.
  ~Staged() override {
    while (step_ == Step::kRuns && !proxy_->take_answer(number_))
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    for (void* memory : buffers_) port_.free_host(memory);
  }

  const char* name() const override { return "through host memory"; }
  bool takes(const Operation&) const override { return true; }
  Result<bool> meet(const Operation& operation, const Turn& turn) override {
    if (may_wait_) return true;
    if (step_ == Step::kBefore) {
      TUTTI_TRY(begin(operation, turn));
      step_ = Step::kInputComes;
    }
    if (step_ == Step::kInputComes) {
      TUTTI_TRY_ASSIGN(const bool has_come, port_.reached(input_.get()));
      if (!has_come) return false;
      number_ = announce(staging_.operation, false);
      proxy_->ask(number_);
      step_ = Step::kRuns;
    }
    if (!proxy_->take_answer(number_)) return false;
    step_ = Step::kBefore;
    return true;
  }

  // Pieces alternate between the halves of the buffer. In stream order: copy the input of piece k to the host, wait for
  // piece k - 1, request piece k, and while it runs copy the output of k - 1 back and the input of k + 1 to the host.
  Result<void> submit(const Operation& operation, const Turn& turn) override {
    const StreamRef stream = turn.stream;
    if (!may_wait_) return take_out(staging_, stream);
    const auto pieces = pieces_of(operation);
    const size_t bytes = stage(pieces[0], host_.rank(), host_.n_ranks(), nullptr).room.used();
    TUTTI_TRY_ASSIGN(char* buffer, buffer_of(pieces.size() > 1 ? 2 * bytes : bytes));
    Staging before;
    std::vector<WordOperation> words;
    for (size_t k = 0; k < pieces.size(); k++) {
      Staging staging = stage(pieces[k], host_.rank(), host_.n_ranks(), buffer + k % 2 * bytes);
      TUTTI_TRY(take_in(staging, stream));
      const uint32_t number = announce(staging.operation, turn.is_captured);
      words.push_back(proxy_->request(number));
      TUTTI_TRY(port_.words(words.data(), static_cast<int>(words.size()), stream));
      TUTTI_TRY(take_out(before, stream));
      before = std::move(staging);
      words = {proxy_->answer(number), proxy_->take_back_answer()};
    }
    TUTTI_TRY(port_.words(words.data(), static_cast<int>(words.size()), stream));
    return take_out(before, stream);
  }

 private:
  enum class Step { kBefore, kInputComes, kRuns };

  Result<char*> buffer_of(size_t bytes) {
    if (buffers_.empty() || bytes > buffer_bytes_) {
      const size_t more = std::max({bytes, buffer_bytes_ * 2, size_t{1}});
      TUTTI_TRY_ASSIGN(void* memory, port_.allocate_host(more));
      buffers_.push_back(memory);
      buffer_bytes_ = more;
    }
    return static_cast<char*>(buffers_.back());
  }

  Result<void> take_in(const Staging& staging, StreamRef stream) {
    for (const auto& piece : staging.in) TUTTI_TRY(port_.copy(piece.host, piece.device, piece.bytes, stream));
    return launch(SpanStep::kQuantise, staging.quantise, staging.operation, stream);
  }

  Result<void> take_out(const Staging& staging, StreamRef stream) {
    TUTTI_TRY(launch(SpanStep::kDequantise, staging.dequantise, staging.operation, stream));
    for (const auto& piece : staging.out) TUTTI_TRY(port_.copy_in(piece.device, piece.host, piece.bytes, stream));
    return {};
  }

  Result<void> launch(SpanStep step, const std::vector<SpanItem>& items, const Operation& operation, StreamRef stream) {
    if (items.empty()) return {};
    const Wire wire = wire_of(operation.root);
    SpanCall call;
    call.step = step;
    call.small = wire.dtype;
    call.block_elems = wire.block_elems;
    for (const SpanItem& item : items) call.items[call.n_items++] = item;
    return run_tiles(port_, call, info_.most_span_blocks(), stream);
  }

  Result<void> begin(const Operation& operation, const Turn& turn) {
    if (turn.is_captured)
      return Error{
          Code::kInvalidUsage,
          format("%s cannot be captured: it goes through host memory, and %s", traits(operation.collective).name,
                 info_.waits_in_streams
                     ? "ranks of one process share a GPU; give every rank a process or a GPU of its own"
                     : kNoWaits)};
    TUTTI_TRY_ASSIGN(char* buffer, buffer_of(stage(operation, host_.rank(), host_.n_ranks(), nullptr).room.used()));
    staging_ = stage(operation, host_.rank(), host_.n_ranks(), buffer);
    TUTTI_TRY(take_in(staging_, turn.stream));
    return input_.record(turn.stream);
  }

  uint32_t announce(const Operation& operation, bool stays) {
    return proxy_->announce([this, operation] { return host_.run_on_host(operation); }, stays);
  }

  Host& host_;
  Port& port_;
  const DeviceInfo info_;
  const std::shared_ptr<Proxy> proxy_;
  const bool may_wait_;  // whether streams may wait
  // Operations use the last one, because they run one after another; earlier ones, or graphs, may still use the others.
  std::vector<void*> buffers_;
  size_t buffer_bytes_ = 0;  // of the last one
  // The operation under way, where streams may not wait:
  Step step_ = Step::kBefore;
  Staging staging_;
  OwnedEvent input_;     // recorded when the input has arrived
  uint32_t number_ = 0;  // the number of the proxy's task
};

}  // namespace

std::unique_ptr<Way> make_staged(Host& host, Port& port, const DeviceInfo& info, std::shared_ptr<Proxy> proxy,
                                 bool may_wait) {
  return std::make_unique<Staged>(host, port, info, std::move(proxy), may_wait);
}

}  // namespace tutti::cuda
