// Operations on blocks of unequal size.
#include "api/checks.h"
#include "api/group.h"
#include "base/places.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

Result<std::vector<uint64_t>> take_array(const char* name, const size_t* values, int n) {
  if (values == nullptr) return invalid_argument(format("%s is NULL", name));
  return std::vector<uint64_t>(values, values + n);
}

// One of the blocks that the user gave as arrays.
struct Block {
  const char *counts, *displs;  // the names of these arrays
  size_t rank;
  uint64_t elems, at;
  bool is_written = false;
  uintptr_t begin = 0, end = 0;  // in memory: see place()

  // "recvcounts[2]=10 at displs[2]=5"
  std::string text() const { return format("%s[%zu]=%lu at %s[%zu]=%lu", counts, rank, elems, displs, rank, at); }
  // It must lie within 2^63 bytes. If it is empty, its position does not matter.
  Result<void> place(const void* buffer, DataType dtype) {
    if (elems == 0) at = 0;
    uint64_t last = 0;
    if (__builtin_add_overflow(at, elems, &last) || !buffer_bytes(last, dtype, 1))
      return invalid_argument(format("%s: elements of %zu bytes overflow", text().c_str(), dtype_bytes(dtype)));
    begin = reinterpret_cast<uintptr_t>(buffer) + at * dtype_bytes(dtype);
    end = begin + elems * dtype_bytes(dtype);
    return {};
  }
};

// A block that is written must overlap no other block.
Result<void> check_apart(std::vector<Block> blocks) {
  const auto [one, other] = find_overlap(blocks);
  if (one == nullptr) return {};
  const auto at = [](const Block* b) { return reinterpret_cast<void*>(b->begin); };
  const bool share_buffer = one->is_written == other->is_written;
  return invalid_argument(
      one->text() + " and " + other->text() + " overlap" +
      (share_buffer ? "" : format(" in memory (sendbuff and recvbuff; at %p and %p)", at(one), at(other))) +
      ": a block to receive into must not overlap any other block");
}

Result<void> check_blocks(const Operation::Unequal& blocks, const char* displs, DataType dtype) {
  std::vector<Block> placed;
  for (size_t r = 0; r < blocks.elems.size(); r++) {
    placed.push_back({"recvcounts", displs, r, blocks.elems[r], blocks.at[r], true});
    TUTTI_TRY(placed.back().place(nullptr, dtype));
  }
  return check_apart(std::move(placed));
}

// The input must overlap no block, or be this rank's block.
Result<void> check_gathered(const void* send, uint64_t send_bytes, const void* recv, const Operation::Unequal& blocks,
                            uint64_t own_at, size_t elem_bytes) {
  for (size_t r = 0; r < blocks.elems.size(); r++) {
    const Buffers buffers{send_bytes, blocks.elems[r] * elem_bytes, InPlace::kInputIsOwnBlock,
                          (own_at - blocks.at[r]) * elem_bytes};
    TUTTI_TRY(check_overlap(buffers, send, static_cast<const char*>(recv) + blocks.at[r] * elem_bytes));
  }
  return {};
}

Result<void> launch_unequal(Collective which, const void* send, void* recv, Operation::Unequal blocks,
                            const tuttiDataType_t& datatype, const tuttiRedOp_t& op, tuttiComm_t comm, Use use,
                            tuttiStream_t stream, const void* caller) {
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  Operation operation{which, send, recv, 0, dtype, RedOp::kSum, 0};
  operation.caller = caller;
  TUTTI_TRY(take_op(op, use.member().operators, &operation));
  TUTTI_TRY(check_blocks(blocks, which == Collective::kAllGather ? "displs" : "offset", operation.dtype));
  for (const uint64_t elems : blocks.elems) operation.count += elems;
  const auto rank = static_cast<size_t>(use->rank());
  const uint64_t mine = blocks.elems[rank], own_at = blocks.at[rank];
  const bool gathers = which == Collective::kAllGather;
  const size_t elem_bytes = dtype_bytes(operation.dtype);
  const uint64_t all_bytes = operation.count * elem_bytes, own_bytes = mine * elem_bytes;
  TUTTI_TRY(check_buffer("sendbuff", send, operation.count, gathers ? own_bytes : all_bytes));
  TUTTI_TRY(check_buffer("recvbuff", recv, operation.count, gathers ? all_bytes : own_bytes));
  const Buffers scattered{all_bytes, own_bytes, InPlace::kOutputIsOwnBlock, own_at * elem_bytes};
  TUTTI_TRY(gathers ? check_gathered(send, own_bytes, recv, blocks, own_at, elem_bytes)
                    : check_overlap(scattered, send, recv));
  blocks.hash = hash_of(blocks.elems);
  operation.unequal = std::make_shared<const Operation::Unequal>(std::move(blocks));
  return launch(comm, std::move(use), operation, stream);
}

Result<void> all_to_all_v(const void* send, const size_t* sendcounts, const size_t* sdispls, void* recv,
                          const size_t* recvcounts, const size_t* rdispls, const tuttiDataType_t& datatype,
                          tuttiComm_t comm, tuttiStream_t stream, const void* caller) {
  TUTTI_TRY_ASSIGN(Use use, use_of(comm));
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  TUTTI_TRY_ASSIGN(const auto send_elems, take_array("sendcounts", sendcounts, use->n_ranks()));
  TUTTI_TRY_ASSIGN(const auto send_at, take_array("sdispls", sdispls, use->n_ranks()));
  TUTTI_TRY_ASSIGN(const auto recv_elems, take_array("recvcounts", recvcounts, use->n_ranks()));
  TUTTI_TRY_ASSIGN(const auto recv_at, take_array("rdispls", rdispls, use->n_ranks()));
  std::vector<Block> blocks;
  std::vector<Message> messages;
  const bool in_order = !is_in_group();
  for (size_t r = 0; r < send_at.size(); r++) {
    for (const bool sends : {true, false}) {
      char* base = static_cast<char*>(sends ? const_cast<void*>(send) : recv);
      Block block = sends ? Block{"sendcounts", "sdispls", r, send_elems[r], send_at[r]}
                          : Block{"recvcounts", "rdispls", r, recv_elems[r], recv_at[r], true};
      TUTTI_TRY(block.place(base, dtype));
      TUTTI_TRY(check_buffer(sends ? "sendbuff" : "recvbuff", base, block.elems, block.end - block.begin));
      messages.push_back(
          {sends, static_cast<int>(r), base + block.at * dtype_bytes(dtype), block.elems, dtype, in_order});
      blocks.push_back(block);
    }
  }
  TUTTI_TRY(check_apart(std::move(blocks)));
  Operation operation;
  operation.collective = Collective::kSendRecv;
  operation.caller = caller;
  operation.messages = std::make_shared<const std::vector<Message>>(std::move(messages));
  return launch(comm, std::move(use), operation, stream);
}

}  // namespace

extern "C" {

tuttiResult_t tuttiAllGatherv(const void* sendbuff, void* recvbuff, const size_t* recvcounts, const size_t* displs,
                              tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream) {
  const void* const caller = caller_or_place(__builtin_return_address(0));
  return in_group([&]() -> Result<void> {
    TUTTI_TRY_ASSIGN(Use use, use_of(comm));
    Operation::Unequal blocks;
    TUTTI_TRY_ASSIGN(blocks.elems, take_array("recvcounts", recvcounts, use->n_ranks()));
    TUTTI_TRY_ASSIGN(blocks.at, take_array("displs", displs, use->n_ranks()));
    return launch_unequal(Collective::kAllGather, sendbuff, recvbuff, std::move(blocks), datatype, tuttiSum, comm,
                          std::move(use), stream, caller);
  });
}

tuttiResult_t tuttiReduceScatterv(const void* sendbuff, void* recvbuff, const size_t* recvcounts,
                                  tuttiDataType_t datatype, tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  const void* const caller = caller_or_place(__builtin_return_address(0));
  return in_group([&]() -> Result<void> {
    TUTTI_TRY_ASSIGN(Use use, use_of(comm));
    Operation::Unequal blocks;
    TUTTI_TRY_ASSIGN(blocks.elems, take_array("recvcounts", recvcounts, use->n_ranks()));
    uint64_t at = 0;
    for (const uint64_t elems : blocks.elems) {
      blocks.at.push_back(at);
      if (__builtin_add_overflow(at, elems, &at)) at = UINT64_MAX;
    }
    return launch_unequal(Collective::kReduceScatter, sendbuff, recvbuff, std::move(blocks), datatype, op, comm,
                          std::move(use), stream, caller);
  });
}

tuttiResult_t tuttiAlltoAllv(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls, void* recvbuff,
                             const size_t* recvcounts, const size_t* rdispls, tuttiDataType_t datatype,
                             tuttiComm_t comm, tuttiStream_t stream) {
  const void* const caller = caller_or_place(__builtin_return_address(0));
  return in_group([&] {
    return all_to_all_v(sendbuff, sendcounts, sdispls, recvbuff, recvcounts, rdispls, datatype, comm, stream, caller);
  });
}

}  // extern "C"
