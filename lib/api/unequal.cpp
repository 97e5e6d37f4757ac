// Operations on blocks of unequal size.
#include <algorithm>

#include "api/checks.h"
#include "api/group.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

namespace {

Result<std::vector<uint64_t>> take_array(const char* name, const size_t* values, int n) {
  if (values == nullptr) return invalid_argument(format("%s is NULL", name));
  return std::vector<uint64_t>(values, values + n);
}

// The blocks lie within 2^63 bytes and do not overlap.
Result<void> check_blocks(const Operation::Unequal& blocks, DataType dtype) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;  // begin, end
  for (size_t r = 0; r < blocks.elems.size(); r++) {
    uint64_t end = 0;
    if (__builtin_add_overflow(blocks.at[r], blocks.elems[r], &end)) end = UINT64_MAX;
    TUTTI_TRY(buffer_bytes(end, dtype, 1));
    if (blocks.elems[r] > 0) ranges.push_back({blocks.at[r], end});
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); i++)
    if (ranges[i].first < ranges[i - 1].second) return invalid_argument("the blocks of recvcounts and displs overlap");
  return {};
}

// The input lies apart from every block, or is this rank's.
Result<void> check_gathered(const Memory& send, const Memory& recv, const Operation::Unequal& blocks, uint64_t own_at,
                            size_t elem_bytes) {
  for (size_t r = 0; r < blocks.elems.size(); r++) {
    const Memory block{recv.at + blocks.at[r] * elem_bytes, blocks.elems[r] * elem_bytes};
    TUTTI_TRY(check_overlap(send, block, InPlace::kSendIsOwnBlock, (own_at - blocks.at[r]) * elem_bytes));
  }
  return {};
}

// What is written overlaps nothing else.
Result<void> check_apart(const std::vector<Message>& messages) {
  struct Range {
    uintptr_t begin, end;
    bool sends;
  };
  std::vector<Range> ranges;
  for (const Message& m : messages) {
    const auto begin = reinterpret_cast<uintptr_t>(m.data);
    if (m.count > 0) ranges.push_back({begin, begin + m.count * dtype_bytes(m.dtype), m.sends});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  uintptr_t sent_end = 0, received_end = 0;
  for (const Range& range : ranges) {
    if (range.begin < received_end || (!range.sends && range.begin < sent_end))
      return invalid_argument(
          "blocks overlap: every block of recvbuff has to lie apart from the others and from those of sendbuff");
    uintptr_t& end = range.sends ? sent_end : received_end;
    end = std::max(end, range.end);
  }
  return {};
}

Result<void> launch_unequal(Collective which, const void* send, void* recv, Operation::Unequal blocks,
                            const tuttiDataType_t& datatype, const tuttiRedOp_t& op, tuttiComm_t comm, Use use,
                            tuttiStream_t stream) {
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  Operation operation{which, send, recv, 0, dtype, RedOp::kSum, 0};
  TUTTI_TRY(take_op(op, use.member().operators, &operation));
  TUTTI_TRY(check_blocks(blocks, operation.dtype));
  for (const uint64_t elems : blocks.elems) operation.count += elems;
  const auto rank = static_cast<size_t>(use->rank());
  const uint64_t mine = blocks.elems[rank], own_at = blocks.at[rank];
  const bool gathers = which == Collective::kAllGather;
  const size_t elem_bytes = dtype_bytes(operation.dtype);
  TUTTI_TRY_ASSIGN(const Memory from, check_buffer("sendbuff", send, true, operation.count,
                                                   (gathers ? mine : operation.count) * elem_bytes));
  TUTTI_TRY_ASSIGN(const Memory to, check_buffer("recvbuff", recv, true, operation.count,
                                                 (gathers ? operation.count : mine) * elem_bytes));
  TUTTI_TRY(gathers ? check_gathered(from, to, blocks, own_at, elem_bytes)
                    : check_overlap(from, to, InPlace::kRecvIsOwnBlock, own_at * elem_bytes));
  operation.unequal = std::make_shared<const Operation::Unequal>(std::move(blocks));
  return launch(comm, std::move(use), operation, stream);
}

Result<void> all_to_all_v(const void* send, const size_t* sendcounts, const size_t* sdispls, void* recv,
                          const size_t* recvcounts, const size_t* rdispls, const tuttiDataType_t& datatype,
                          tuttiComm_t comm, tuttiStream_t stream) {
  Use use(comm);
  if (!use) return not_a_comm(comm);
  TUTTI_TRY_ASSIGN(const DataType dtype, check_type(datatype));
  const struct {
    const char* name;
    const size_t* values;
  } arrays[] = {{"sendcounts", sendcounts}, {"sdispls", sdispls}, {"recvcounts", recvcounts}, {"rdispls", rdispls}};
  for (const auto& array : arrays)
    if (array.values == nullptr) return invalid_argument(format("%s is NULL", array.name));
  std::vector<Message> messages;
  for (int peer = 0; peer < use->n_ranks(); peer++) {
    for (const bool sends : {true, false}) {
      const size_t count = (sends ? sendcounts : recvcounts)[peer], at = (sends ? sdispls : rdispls)[peer];
      char* base = static_cast<char*>(sends ? const_cast<void*>(send) : recv);
      size_t end = 0;
      if (__builtin_add_overflow(at, count, &end)) end = SIZE_MAX;
      TUTTI_TRY_ASSIGN(const size_t bytes, buffer_bytes(count == 0 ? 0 : end, dtype, 1));
      TUTTI_TRY(check_buffer(sends ? "sendbuff" : "recvbuff", base, true, count, bytes));
      messages.push_back({sends, peer, count == 0 ? base : base + at * dtype_bytes(dtype), count, dtype});
    }
  }
  TUTTI_TRY(check_apart(messages));
  Operation operation;
  operation.collective = Collective::kSendRecv;
  operation.messages = std::make_shared<const std::vector<Message>>(std::move(messages));
  return launch(comm, std::move(use), operation, stream);
}

}  // namespace

extern "C" {

tuttiResult_t tuttiAllGatherv(const void* sendbuff, void* recvbuff, const size_t* recvcounts, const size_t* displs,
                              tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream) {
  return in_group([&]() -> Result<void> {
    Use use(comm);
    if (!use) return not_a_comm(comm);
    Operation::Unequal blocks;
    TUTTI_TRY_ASSIGN(blocks.elems, take_array("recvcounts", recvcounts, use->n_ranks()));
    TUTTI_TRY_ASSIGN(blocks.at, take_array("displs", displs, use->n_ranks()));
    return launch_unequal(Collective::kAllGather, sendbuff, recvbuff, std::move(blocks), datatype, tuttiSum, comm,
                          std::move(use), stream);
  });
}

tuttiResult_t tuttiReduceScatterv(const void* sendbuff, void* recvbuff, const size_t* recvcounts,
                                  tuttiDataType_t datatype, tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  return in_group([&]() -> Result<void> {
    Use use(comm);
    if (!use) return not_a_comm(comm);
    Operation::Unequal blocks;
    TUTTI_TRY_ASSIGN(blocks.elems, take_array("recvcounts", recvcounts, use->n_ranks()));
    uint64_t at = 0;
    for (const uint64_t elems : blocks.elems) {
      blocks.at.push_back(at);
      if (__builtin_add_overflow(at, elems, &at)) return invalid_argument("recvcounts overflow");
    }
    return launch_unequal(Collective::kReduceScatter, sendbuff, recvbuff, std::move(blocks), datatype, op, comm,
                          std::move(use), stream);
  });
}

tuttiResult_t tuttiAlltoAllv(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls, void* recvbuff,
                             const size_t* recvcounts, const size_t* rdispls, tuttiDataType_t datatype,
                             tuttiComm_t comm, tuttiStream_t stream) {
  return in_group([&] {
    return all_to_all_v(sendbuff, sendcounts, sdispls, recvbuff, recvcounts, rdispls, datatype, comm, stream);
  });
}

}  // extern "C"
