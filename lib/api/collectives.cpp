// Operations.
#include "api/handle.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

static_assert(tuttiNumTypes == kDataTypes && tuttiNumOps == kRedOps);
static_assert(tuttiBfloat16 == static_cast<int>(DataType::kBfloat16) &&
              tuttiFloat64 == static_cast<int>(DataType::kFloat64) && tuttiAvg == static_cast<int>(RedOp::kAvg) &&
              tuttiMin == static_cast<int>(RedOp::kMin));

namespace {

Result<void> check_types(int datatype, int op) {
  if (datatype < 0 || datatype >= tuttiNumTypes)
    return invalid_argument(format("datatype=%d is not one of tuttiDataType_t (0 to %d)", datatype, tuttiNumTypes - 1));
  if (op < 0 || op >= tuttiNumOps)
    return invalid_argument(format("op=%d is not one of tuttiRedOp_t (0 to %d)", op, tuttiNumOps - 1));
  return {};
}

Result<void> check_buffers(const void* send, const void* recv, size_t count, DataType dtype) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, dtype_bytes(dtype), &bytes) || bytes > static_cast<size_t>(INT64_MAX))
    return invalid_argument(format("count=%zu elements of %zu bytes overflow", count, dtype_bytes(dtype)));
  if (count == 0) return {};
  if (recv == nullptr) return invalid_argument(format("recvbuff is NULL with count=%zu", count));
  if (send == nullptr) return invalid_argument(format("sendbuff is NULL with count=%zu", count));
  const auto s = reinterpret_cast<uintptr_t>(send), r = reinterpret_cast<uintptr_t>(recv);
  if (s != r && s < r + bytes && r < s + bytes)
    return invalid_argument(
        format("sendbuff=%p and recvbuff=%p overlap within %zu bytes: use the same pointer (in "
               "place) or separate memory",
               send, recv, bytes));
  return {};
}

// Runs on the caller's thread, or takes its place in the order and leaves the rest to the stream.
Result<void> launch(Use use, const Operation& operation, tuttiStream_t stream_handle) {
  if (stream_handle == nullptr) return use->run(operation);
  TUTTI_TRY_ASSIGN(const auto stream, find_stream(stream_handle));
  const uint64_t ticket = use->take_ticket();
  const auto kept = std::make_shared<Use>(std::move(use));  // the queue's copy keeps the communicator alive
  stream->enqueue([kept, ticket, operation] { return (*kept)->run(ticket, operation); });
  return {};
}

Result<void> all_reduce(const void* send, void* recv, size_t count, int datatype, int op, tuttiComm_t comm,
                        tuttiStream_t stream) {
  Use use(comm);
  if (!use) return not_a_comm(comm);
  TUTTI_TRY(check_types(datatype, op));
  const auto dtype = static_cast<DataType>(datatype);
  TUTTI_TRY(check_buffers(send, recv, count, dtype));
  return launch(std::move(use), {Collective::kAllReduce, send, recv, count, dtype, static_cast<RedOp>(op), 0}, stream);
}

Result<void> broadcast(const void* send, void* recv, size_t count, int datatype, int root, tuttiComm_t comm,
                       tuttiStream_t stream) {
  Use use(comm);
  if (!use) return not_a_comm(comm);
  TUTTI_TRY(check_types(datatype, tuttiSum));
  if (root < 0 || root >= use->n_ranks())
    return invalid_argument(format("root=%d is not a rank of this communicator: [0, %d)", root, use->n_ranks()));
  const auto dtype = static_cast<DataType>(datatype);
  if (use->rank() != root) send = recv;  // not read elsewhere, so it may be anything
  TUTTI_TRY(check_buffers(send, recv, count, dtype));
  return launch(std::move(use), {Collective::kBroadcast, send, recv, count, dtype, RedOp::kSum, root}, stream);
}

}  // namespace

extern "C" {

tuttiResult_t tuttiAllReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                             tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream) {
  return guarded([&] { return all_reduce(sendbuff, recvbuff, count, datatype, op, comm, stream); });
}

tuttiResult_t tuttiBroadcast(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype, int root,
                             tuttiComm_t comm, tuttiStream_t stream) {
  return guarded([&] { return broadcast(sendbuff, recvbuff, count, datatype, root, comm, stream); });
}

tuttiResult_t tuttiBcast(void* buff, size_t count, tuttiDataType_t datatype, int root, tuttiComm_t comm,
                         tuttiStream_t stream) {
  return guarded([&] { return broadcast(buff, buff, count, datatype, root, comm, stream); });
}

}  // extern "C"
