// Names and numbers of the data types and operators, as nccl-tests spells them.
#pragma once

#include <array>
#include <cstddef>

#include "tutti/tutti.h"

namespace tutti::perf {

struct TypeInfo {
  tuttiDataType_t type;
  const char* name;
  size_t bytes;
};
inline constexpr std::array<TypeInfo, tuttiNumTypes> kTypes = {{
    {tuttiInt8, "int8", 1},
    {tuttiUint8, "uint8", 1},
    {tuttiInt32, "int32", 4},
    {tuttiUint32, "uint32", 4},
    {tuttiInt64, "int64", 8},
    {tuttiUint64, "uint64", 8},
    {tuttiFloat16, "half", 2},
    {tuttiFloat32, "float", 4},
    {tuttiFloat64, "double", 8},
    {tuttiBfloat16, "bfloat16", 2},
    {tuttiFloat8e4m3, "f8e4m3", 1},
    {tuttiFloat8e5m2, "f8e5m2", 1},
}};

// The last one stands for operators of tuttiRedOpCreatePreMulSum, as tuttiNumOps does among the numbers.
inline constexpr std::array<const char*, tuttiNumOps + 1> kOpNames = {"sum", "prod", "max", "min", "avg", "mulsum"};

inline const TypeInfo& type_info(tuttiDataType_t type) {
  return kTypes[static_cast<size_t>(type)];
}

}  // namespace tutti::perf
