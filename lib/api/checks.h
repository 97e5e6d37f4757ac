// Checks of arguments that several operations share: each names the argument and its value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "api/handle.h"
#include "exec/buffers.h"

namespace tutti::api {

// A C program may pass any number as an enum, and reading an enum whose value is out of range is undefined behaviour.
// So enums are passed here by reference and read as raw ints.
template <class Enum>
int raw(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number;
  memcpy(&number, &value, sizeof number);
  return number;
}

[[gnu::cold]] Error no_such_type(int datatype);
[[gnu::cold]] Error too_many_bytes(size_t count, DataType dtype, size_t blocks);

inline Result<DataType> check_type(const tuttiDataType_t& datatype) {
  if (raw(datatype) < 0 || raw(datatype) >= tuttiNumTypes) return no_such_type(raw(datatype));
  return static_cast<DataType>(raw(datatype));
}

// Sets the operator of an operation; the operation's dtype must be set.
Result<void> take_made_op(int op, const Operators& operators, Operation* operation);
inline Result<void> take_op(const tuttiRedOp_t& op, const Operators& operators, Operation* operation) {
  if (raw(op) < 0 || raw(op) >= tuttiNumOps) return take_made_op(raw(op), operators, operation);
  operation->op = static_cast<RedOp>(raw(op));
  return {};
}

inline Result<size_t> buffer_bytes(size_t count, DataType dtype, size_t blocks) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, dtype_bytes(dtype) * blocks, &bytes) || bytes > static_cast<size_t>(INT64_MAX))
    return too_many_bytes(count, dtype, blocks);
  return bytes;
}

// `bytes`: how many bytes of the buffer are used.
inline Result<void> check_buffer(const char* name, const void* pointer, size_t count, size_t bytes) {
  if (pointer != nullptr || bytes == 0) return {};
  return invalid_argument(format("%s is NULL with count=%zu", name, count));
}
// The ranks of a list that may name each of `n_ranks` ranks once.
Result<std::set<int>> check_ranks(const char* name, const int* list, int n, int n_ranks);
// For functions that return text: `text` has room for *bytes; *bytes becomes the size needed, final zero included.
Result<void> check_text(const char* text, const size_t* bytes);
void give_text(const std::string& whole, char* text, size_t* bytes);

Result<void> check_overlap(const Buffers& buffers, const void* send, const void* recv);
inline Result<void> check_buffers(const Buffers& buffers, const void* send, const void* recv, size_t count) {
  TUTTI_TRY(check_buffer("recvbuff", recv, count, buffers.output_bytes));
  TUTTI_TRY(check_buffer("sendbuff", send, count, buffers.input_bytes));
  return check_overlap(buffers, send, recv);
}

// Two of an operation's buffers, each from `begin` to `end`, that overlap though one of them is written; null if there
// are none. Sorts them.
template <class Place>
std::pair<const Place*, const Place*> find_overlap(std::vector<Place>& places) {
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
  const Place none{};
  const Place *read = &none, *written = &none;  // those with the largest end so far
  for (const Place& place : places) {
    if (place.begin == place.end) continue;
    const bool hits_written = place.begin < written->end;
    if (hits_written || (place.is_written && place.begin < read->end)) return {hits_written ? written : read, &place};
    const Place*& farthest = place.is_written ? written : read;
    if (place.end > farthest->end) farthest = &place;
  }
  return {};
}

}  // namespace tutti::api
