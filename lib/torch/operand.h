// A tensor as calls.cpp passes it to libtutti, and how it is read through DLPack's C interface, which torch.Tensor has
// from 2.10 on: one call where Python's methods take six.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tutti/types.h"

namespace {

// Lengths of a tensor's dimensions. With more than kMostDims, ndim < 0 and the shape equals no other.
struct Shape {
  static constexpr int kMostDims = 8;
  int ndim = 0;
  std::array<int64_t, kMostDims> lengths{};
  bool operator==(const Shape& other) const {
    if (ndim < 0 || ndim != other.ndim) return false;
    for (size_t i = 0; i < static_cast<size_t>(ndim); i++)
      if (lengths[i] != other.lengths[i]) return false;
    return true;
  }
};

struct Operand {
  tuttiDataType_t type = tuttiInt8;
  void* at = nullptr;
  size_t elems = 0;
  Shape shape;
};

// The structs of DLPack's ABI, version 1, as far as they are read.
struct DlTensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t type_code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset_bytes;
};
struct DlExchange {
  static constexpr const char* kCapsule = "dlpack_exchange_api";
  static constexpr uint32_t kMajor = 1;
  uint32_t major, minor;
  void *older, *allocate, *from_python, *to_python;
  int (*describe)(void* tensor, DlTensor* to);  // 0, or -1 with an exception; may be null
  void* stream;
};

// False for a type that Tutti does not add up.
inline bool type_of(const DlTensor& tensor, tuttiDataType_t* type) {
  constexpr uint8_t kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kFloat8e4m3 = 10, kFloat8e5m2 = 12;
  constexpr struct {
    uint8_t code, bits;
    tuttiDataType_t type;
  } kTypes[] = {{kFloat, 32, tuttiFloat32},
                {kBfloat, 16, tuttiBfloat16},
                {kFloat, 16, tuttiFloat16},
                {kFloat, 64, tuttiFloat64},
                {kInt, 64, tuttiInt64},
                {kInt, 32, tuttiInt32},
                {kInt, 8, tuttiInt8},
                {kUint, 8, tuttiUint8},
                {kUint, 32, tuttiUint32},
                {kUint, 64, tuttiUint64},
                {kFloat8e4m3, 8, tuttiFloat8e4m3},
                {kFloat8e5m2, 8, tuttiFloat8e5m2}};
  for (const auto& each : kTypes) {
    if (each.code != tensor.type_code || each.bits != tensor.bits) continue;
    *type = each.type;
    return tensor.lanes == 1;
  }
  return false;
}

// False if the tensor is not in host memory, is not contiguous, or is of another type.
inline bool take(const DlTensor& tensor, Operand* operand) {
  constexpr int32_t kCpu = 1;
  if (tensor.device_type != kCpu || tensor.ndim > Shape::kMostDims || !type_of(tensor, &operand->type)) return false;
  int64_t elems = 1;
  bool contiguous = true;
  operand->shape.ndim = tensor.ndim;
  for (int i = tensor.ndim - 1; i >= 0; i--) {
    const int64_t length = operand->shape.lengths[static_cast<size_t>(i)] = tensor.shape[i];
    contiguous = contiguous && (length == 1 || tensor.strides == nullptr || tensor.strides[i] == elems);
    elems *= length;
  }
  operand->at = static_cast<char*>(tensor.data) + tensor.offset_bytes;
  operand->elems = static_cast<size_t>(elems);
  return contiguous || elems == 0;
}

}  // namespace
