// Broadcasting and scattering data sets from the rank that has them.
#include <algorithm>

#include "agree.h"
#include "tensor.h"

using namespace tutti::ddp;  // NOLINT: this file is at the boundary

namespace {

uint64_t row_bytes(const tuttiDdpData_t& data) {
  uint64_t bytes = element_bytes(data.datatype);
  for (int i = 1; i < data.ndim; i++) bytes *= data.shape[i];
  return bytes;
}

uint64_t rows_in(const tuttiDdpData_t& data) {
  return data.ndim == 0 ? 0 : data.shape[0];
}

Status check_data(const tuttiDdpData_t* data) {
  if (data == nullptr) return invalid_argument("data is NULL on the root");
  if (data->size < sizeof *data)
    return invalid_argument(text("data->size=%zu; start from TUTTI_DDP_DATA_INITIALIZER", data->size));
  if (data->metadataBytes > 0 && data->metadata == nullptr)
    return invalid_argument(text("data->metadata is NULL, but metadataBytes=%zu", data->metadataBytes));
  if (data->ndim < 0 || data->ndim > TUTTI_DDP_MAX_DIMS)
    return invalid_argument(text("data->ndim=%d; it has to be 0 to %d", data->ndim, TUTTI_DDP_MAX_DIMS));
  uint64_t bytes = element_bytes(data->datatype);
  if (bytes == 0)
    return invalid_argument(text("data->datatype=%d is not one of tuttiDataType_t", static_cast<int>(data->datatype)));
  bool overflow = false, empty = data->ndim == 0;
  for (int i = 0; i < data->ndim; i++) {
    overflow |= __builtin_mul_overflow(bytes, data->shape[i], &bytes);
    empty |= data->shape[i] == 0;
  }
  if (!empty && (overflow || bytes > uint64_t{1} << 62))
    return invalid_argument("data->shape has more elements than memory can hold");
  if (!empty && data->data == nullptr) return invalid_argument("data->data is NULL, but the shape is not empty");
  return {};
}

// Every rank learns the root's struct, without its memory, or what is wrong with any rank's arguments. `place` is for
// the result; *header must be initialised.
Status share_header(const Group& group, int root, const tuttiDdpData_t* data, const tuttiDdpData_t* place,
                    tuttiDdpData_t* header) {
  Status mine;
  if (place == nullptr || place->size < sizeof *place)
    mine = invalid_argument("the output data is NULL or was not initialised; start from TUTTI_DDP_DATA_INITIALIZER");
  else if (root < 0 || root >= group.size)
    mine = invalid_argument(text("root=%d; it has to be in [0, %d)", root, group.size));
  else if (group.rank == root)
    mine = check_data(data);
  if (Status s = agree(group, mine); !s) return s;
  if (group.rank == root) {
    header->datatype = data->datatype;
    header->ndim = data->ndim;
    std::copy_n(data->shape, data->ndim, header->shape);
    header->metadataBytes = data->metadataBytes;
  }
  return library(tuttiBcast(header, sizeof *header, tuttiUint8, root, group.comm, nullptr));
}

Status broadcast_bytes(const Group& group, int root, const void* from, void* to, uint64_t bytes) {
  return library(tuttiBroadcast(from, to, bytes, tuttiUint8, root, group.comm, nullptr));
}

// Sets *place to the header, with memory for `rows` rows, if `wanted` on this rank. Succeeds on all ranks or on none.
Status make_room(const Group& group, const tuttiDdpData_t& header, uint64_t rows, bool wanted, tuttiDdpData_t* place) {
  Status mine;
  tuttiDdpData_t fresh = header;
  if (header.ndim > 0) fresh.shape[0] = rows;
  if (wanted) {
    mine = library(tuttiMemAlloc(&fresh.data, rows * row_bytes(header)));
    if (mine) mine = library(tuttiMemAlloc(&fresh.metadata, header.metadataBytes));
  }
  const Status agreed = agree(group, mine);
  if (!agreed) {
    static_cast<void>(tuttiMemFree(fresh.data));
    static_cast<void>(tuttiMemFree(fresh.metadata));
  } else if (wanted) {
    *place = fresh;
  }
  return agreed;
}

// Finds the group; the communicator must be in host memory, like the data.
Status find_host_group(tuttiComm_t comm, Group* group) {
  int device = -1;
  if (Status s = library(tuttiCommCuDevice(comm, &device)); !s) return s;
  if (device >= 0)
    return invalid_argument(
        text("comm is on CUDA device %d, but the data are in host memory; use a communicator in host memory "
             "(tuttiCommSplit with config.cudaDevice=-1)",
             device));
  return find_group(comm, group);
}

Status broadcast_data(tuttiDdpData_t* data, int root, tuttiComm_t comm) {
  Group group;
  if (Status s = find_host_group(comm, &group); !s) return s;
  tuttiDdpData_t header = TUTTI_DDP_DATA_INITIALIZER;
  if (Status s = share_header(group, root, data, data, &header); !s) return s;
  if (Status s = make_room(group, header, rows_in(header), group.rank != root, data); !s) return s;
  const uint64_t bytes = rows_in(header) * row_bytes(header);
  if (Status s = broadcast_bytes(group, root, data->data, data->data, bytes); !s) return s;
  return broadcast_bytes(group, root, data->metadata, data->metadata, header.metadataBytes);
}

struct Rows {
  uint64_t first, count;
};

Rows rows_of(uint64_t rows, const Group& group, int rank) {
  const auto size = static_cast<uint64_t>(group.size), r = static_cast<uint64_t>(rank);
  const uint64_t each = rows / size, more = rows % size;
  return {r * each + std::min(r, more), each + (r < more ? 1 : 0)};
}

// The root sends every rank its rows, including itself.
Status scatter_rows(const Group& group, int root, const tuttiDdpData_t& header, const void* all, void* part) {
  Status outcome = library(tuttiGroupStart());
  for (int rank = 0; group.rank == root && rank < group.size && outcome; rank++) {
    const Rows rows = rows_of(rows_in(header), group, rank);
    const char* at = static_cast<const char*>(all) + rows.first * row_bytes(header);
    outcome = library(tuttiSend(at, rows.count * row_bytes(header), tuttiUint8, rank, group.comm, nullptr));
  }
  const uint64_t mine = rows_of(rows_in(header), group, group.rank).count * row_bytes(header);
  if (outcome) outcome = library(tuttiRecv(part, mine, tuttiUint8, root, group.comm, nullptr));
  const Status ended = library(tuttiGroupEnd());
  return outcome ? ended : outcome;
}

Status scatter_data(const tuttiDdpData_t* all, tuttiDdpData_t* part, int root, tuttiComm_t comm) {
  Group group;
  if (Status s = find_host_group(comm, &group); !s) return s;
  tuttiDdpData_t header = TUTTI_DDP_DATA_INITIALIZER;
  if (Status s = share_header(group, root, all, part, &header); !s) return s;
  tuttiDdpData_t whole = TUTTI_DDP_DATA_INITIALIZER;
  if (group.rank == root) whole = *all;  // part may be the same struct
  const uint64_t mine = rows_of(rows_in(header), group, group.rank).count;
  if (Status s = make_room(group, header, mine, true, part); !s) return s;
  if (Status s = scatter_rows(group, root, header, whole.data, part->data); !s) return s;
  return broadcast_bytes(group, root, whole.metadata, part->metadata, header.metadataBytes);
}

}  // namespace

extern "C" {

tuttiResult_t tuttiDdpBroadcastData(tuttiDdpData_t* data, int root, tuttiComm_t comm) {
  return guarded([&] { return broadcast_data(data, root, comm); });
}

tuttiResult_t tuttiDdpScatterData(const tuttiDdpData_t* all, tuttiDdpData_t* part, int root, tuttiComm_t comm) {
  return guarded([&] { return scatter_data(all, part, root, comm); });
}

tuttiResult_t tuttiDdpFreeData(tuttiDdpData_t* data) {
  return guarded([&]() -> Status {
    if (data == nullptr) return invalid_argument("data is NULL");
    if (Status s = library(tuttiMemFree(data->data)); !s) return s;
    data->data = nullptr;
    if (Status s = library(tuttiMemFree(data->metadata)); !s) return s;
    *data = TUTTI_DDP_DATA_INITIALIZER;
    return {};
  });
}

}  // extern "C"
