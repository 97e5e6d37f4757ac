// Every vector kernel, written once on the compilers' vector types. Each instruction set's translation unit includes
// this after vector.h and its own few primitives:
//
//   kVectorBytes                                     one register
//   kPlainBytes                                      the part of it that types without conversion use
//   Floats, Words, Halfs, Codes                      a register of floats, and as many words of 32, 16 and 8 bits
//   Words widen(Codes), void narrow(Words, Codes&)   gcc 12 compiles these badly on its own
//   Floats decode_half(Halfs), Halfs encode_half(Floats)
//   void stream(char*, Vector), void stream_fence()  non-temporal stores, `to` aligned to the vector's size
//   bool round_brain(Floats even, Floats odd, Vector<uint16_t, kVectorBytes>&)        where there is an instruction for
//                                                    it: to bfloat16, interleaved; false if it cannot do these values
//   Vector load_part<Vector>(const char*, size_t), void store_part(char*, Vector, size_t)     first bytes of a vector
//
// Everything is in an unnamed namespace, and no standard library function with a body is used: the linker would merge a
// function with external linkage with the same one compiled for another instruction set, and a CPU without that set
// would run it.
#pragma once

#include "kernels/cpu/quantise.h"
#include "kernels/cpu/simd_types.h"

namespace tutti {
namespace {

inline constexpr size_t kLineBytes = 64;
// Below this, aligning the stores costs more than it gains.
inline constexpr size_t kMinAlignBytes = 1024;
// Above this, unrolling pays.
inline constexpr size_t kMostSmallBytes = 1024;

// What a loop needs of ReduceArgs.
struct Job {
  const void* const* src;
  void* const* dst;
  int n_src, n_dst;
  uint32_t divisor;  // or 0
  int n_stream;

  const char* source(int s, size_t at) const { return static_cast<const char*>(src[s]) + at; }
  char* destination(int d, size_t at) const { return static_cast<char*>(dst[d]) + at; }
};

// Combines one register of values with another, or two with two.
template <class T, class Op>
[[gnu::always_inline]] inline typename T::Value combine(typename T::Value a, typename T::Value b) {
  if constexpr (requires { typename T::Half; }) {
    return {Op::template combine<typename T::Half>(a.even, b.even),
            Op::template combine<typename T::Half>(a.odd, b.odd)};
  } else {
    return Op::template combine<T>(a, b);
  }
}

// kVectors vectors from byte `at` on. All sources are read before anything is written: a destination may be a source.
// Destinations are written one after another: stores that alternate between two distant streams can be several times
// slower.
template <class T, class Op, int kSources, int kVectors>
[[gnu::always_inline]] inline void reduce_vectors(const Job& job, size_t at) {
  using Stored = typename T::Stored;
  constexpr size_t kBytes = sizeof(Stored);
  typename T::Value value[kVectors];
  for (int v = 0; v < kVectors; ++v) value[v] = T::decode(load<Stored>(job.source(0, at + v * kBytes)));
  const int n_src = kSources ? kSources : job.n_src;
  for (int s = 1; s < n_src; ++s) {
    const char* src = job.source(s, at);
    for (int v = 0; v < kVectors; ++v) {
      value[v] = combine<T, Op>(value[v], T::decode(load<Stored>(src + v * kBytes)));
    }
  }
  if (job.divisor) {
    for (int v = 0; v < kVectors; ++v) value[v] = T::divide(value[v], job.divisor);
  }
  Stored result[kVectors];
  for (int v = 0; v < kVectors; ++v) result[v] = T::encode(value[v]);
  const auto write = [&](int d) __attribute__((always_inline)) {
    char* const dst = job.destination(d, at);
    if (d < job.n_stream) {
      for (int v = 0; v < kVectors; ++v) stream(dst + v * kBytes, result[v]);
    } else {
      for (int v = 0; v < kVectors; ++v) store(dst + v * kBytes, result[v]);
    }
  };
  // The usual counts are handled outside the loop, in which gcc would keep the results in memory.
  write(0);
  if (job.n_dst > 1) write(1);
  for (int d = 2; d < job.n_dst; ++d) write(d);
}

// The last `bytes` that do not fill a vector.
template <class T, class Op>
[[gnu::always_inline]] inline void reduce_part(const Job& job, size_t at, size_t bytes) {
  using Stored = typename T::Stored;
  auto value = T::decode(load_part<Stored>(job.source(0, at), bytes));
  for (int s = 1; s < job.n_src; ++s) {
    value = combine<T, Op>(value, T::decode(load_part<Stored>(job.source(s, at), bytes)));
  }
  if (job.divisor) value = T::divide(value, job.divisor);
  const Stored result = T::encode(value);
  for (int d = 0; d < job.n_dst; ++d) store_part(job.destination(d, at), result, bytes);
}

// kBare: one destination, no division and no non-temporal stores, which the loop then need not check for.
template <class T, class Op, int kSources, bool kBare>
[[gnu::noinline]] void reduce_span(const Job& shared_job, size_t at, size_t end) {
  constexpr size_t kBytes = sizeof(typename T::Stored);
  Job job = shared_job;
  if constexpr (kBare) {
    job.n_dst = 1;
    job.divisor = 0;
    job.n_stream = 0;
  }
  // As far as the compiler knows, stores could change the caller's arrays, but not these.
  void* dst[kMaxDestinations];
  for (int d = 0; d < kMaxDestinations; ++d) dst[d] = job.dst[d < job.n_dst ? d : 0];
  job.dst = dst;
  const void* two[2];
  if constexpr (kSources == 2) {
    two[0] = job.src[0];
    two[1] = job.src[1];
    job.src = two;
  }
  if constexpr (T::kUnroll > 1) {
    constexpr size_t kBlock = T::kUnroll * kBytes;
    for (; end - at >= kBlock; at += kBlock) reduce_vectors<T, Op, kSources, T::kUnroll>(job, at);
  }
  for (; end - at >= kBytes; at += kBytes) reduce_vectors<T, Op, kSources, 1>(job, at);
  if (at != end) reduce_part<T, Op>(job, at, end - at);
}

template <class T, class Op, int kSources, bool kBare = false>
void reduce_job(Job job, size_t bytes) {
  size_t head = 0;
  bool aligned = false;
  if (bytes >= kMinAlignBytes) {
    head = -reinterpret_cast<uintptr_t>(job.dst[0]) % kLineBytes;
    aligned = head % T::kElemBytes == 0;  // otherwise no element starts on a cache line
  }
  int n_stream = aligned ? job.n_stream : 0;
  for (int d = 1; d < n_stream; ++d)
    if ((job.destination(d, 0) - job.destination(0, 0)) % static_cast<ptrdiff_t>(kLineBytes) != 0) n_stream = d;
  job.n_stream = 0;
  if (!aligned) head = 0;
  if (head) reduce_span<T, Op, kSources, kBare>(job, 0, head);
  job.n_stream = n_stream;
  reduce_span<T, Op, kSources, kBare>(job, head, bytes);
  if (n_stream) stream_fence();
}

void copy(const ReduceArgs& args, size_t bytes) {
  void* dst[kMaxDestinations];
  Job job{args.src, dst, 1, 0, 0, 0};
  for (int d = 0; d < args.n_dst; ++d) {
    if (args.dst[d] == args.src[0]) continue;
    dst[job.n_dst++] = args.dst[d];
    if (d < args.n_stream) job.n_stream++;
  }
  if (job.n_dst == 0 || bytes == 0) return;
  if (job.n_dst > 1 || job.n_stream) return reduce_job<Plain<uint8_t>, Sum, 1>(job, bytes);
  std::memcpy(dst[0], args.src[0], bytes);
}

template <class T, class Op>
[[gnu::noinline]] void reduce(const ReduceArgs& args, uint32_t divisor) {
  const size_t bytes = args.elems * T::kElemBytes;
  if (args.n_src == 1 && !divisor) return copy(args, bytes);
  const Job job{args.src, args.dst, args.n_src, args.n_dst, divisor, args.n_stream};
  if (bytes < sizeof(typename T::Stored)) return bytes > 0 ? reduce_part<T, Op>(job, 0, bytes) : void();
  // Shapes that rings use get their own loops; the bare one takes 56 ns instead of 63 for 4 KiB of bfloat16 (Zen 5).
  if constexpr (std::is_same_v<Op, Sum>) {
    const bool bare = job.n_dst == 1 && !job.divisor && job.n_stream == 0;
    if (job.n_src == 2 && bare) return reduce_job<T, Op, 2, true>(job, bytes);
    if (job.n_src == 2) return reduce_job<T, Op, 2>(job, bytes);
  }
  reduce_job<T, Op, 0>(job, bytes);
}

// Two sources of a few vectors, into one destination: the inner part of a small all-reduce. Without a stack to align
// and arrays to copy this takes half of the instructions: constants are not kept in memory.
template <class T, class Op>
[[gnu::always_inline]] inline void reduce_small(const ReduceArgs& args, size_t bytes) {
  constexpr size_t kBytes = sizeof(typename T::Stored);
  const void* const src[] = {args.src[0], args.src[1]};
  void* const dst[] = {args.dst[0]};
  const Job job{src, dst, 2, 1, 0, 0};
  size_t at = 0;
  for (; bytes - at >= kBytes; at += kBytes) reduce_vectors<T, Op, 2, 1>(job, at);
  if (at != bytes) reduce_part<T, Op>(job, at, bytes - at);
}

template <class T, class Op>
void reduce_plain(const ReduceArgs& args) {
  const size_t bytes = args.elems * T::kElemBytes;
  if (bytes <= kMostSmallBytes && args.n_src == 2 && args.n_dst == 1 && args.n_stream == 0)
    return reduce_small<T, Op>(args, bytes);
  reduce<T, Op>(args, 0);
}

template <class T>
void reduce_avg(const ReduceArgs& args) {
  reduce<T, Sum>(args, args.divisor);
}

// Converts registers of codes to registers of floats, or back.
template <class From, class To, class Convert>
[[gnu::always_inline]] inline void convert(const void* from, size_t elems, void* to, Convert convert_one) {
  constexpr size_t kElems = sizeof(Floats) / sizeof(float);
  const char* in = static_cast<const char*>(from);
  char* out = static_cast<char*>(to);
  for (; elems >= kElems; elems -= kElems, in += sizeof(From), out += sizeof(To))
    store(out, convert_one(load<From>(in)));
  if (elems == 0) return;
  const From part = load_part<From>(in, elems * (sizeof(From) / kElems));
  store_part(out, convert_one(part), elems * (sizeof(To) / kElems));
}

template <class T>
void widen(const void* from, size_t elems, void* to) {
  convert<typename T::Stored, Floats>(from, elems, to, [](auto codes) { return T::decode(codes); });
}
template <class T>
void narrow(const void* from, size_t elems, void* to) {
  convert<Floats, typename T::Stored>(from, elems, to, [](auto floats) { return T::encode(floats); });
}

template <class T>
void fill_conversions(KernelTable& table, DataType type) {
  table.widen[static_cast<int>(type)] = widen<T>;
  table.narrow[static_cast<int>(type)] = narrow<T>;
}

template <class T>
void fill_type(KernelTable& table, DataType type) {
  const auto entry = [&](RedOp op) -> ReduceKernel& {
    return table.reduce[static_cast<int>(op)][static_cast<int>(type)];
  };
  entry(RedOp::kSum) = reduce_plain<T, Sum>;
  entry(RedOp::kProd) = reduce_plain<T, Prod>;
  entry(RedOp::kMax) = reduce_plain<T, Max>;
  entry(RedOp::kMin) = reduce_plain<T, Min>;
  entry(RedOp::kAvg) = reduce_avg<T>;
}

inline void fill_all(KernelTable& table) {
  fill_quantise(table);
  fill_type<Plain<int8_t>>(table, DataType::kInt8);
  fill_type<Plain<uint8_t>>(table, DataType::kUint8);
  fill_type<Plain<int32_t>>(table, DataType::kInt32);
  fill_type<Plain<uint32_t>>(table, DataType::kUint32);
  fill_type<Plain<int64_t>>(table, DataType::kInt64);
  fill_type<Plain<uint64_t>>(table, DataType::kUint64);
  fill_type<HalfFloat>(table, DataType::kFloat16);
  fill_type<Plain<float>>(table, DataType::kFloat32);
  fill_type<Plain<double>>(table, DataType::kFloat64);
  fill_type<BrainFloat>(table, DataType::kBfloat16);
  fill_type<EightBitFloat<4, 3, 0x7f>>(table, DataType::kFloat8e4m3);
  fill_type<EightBitFloat<5, 2, 0x7c>>(table, DataType::kFloat8e5m2);
  fill_conversions<HalfFloat>(table, DataType::kFloat16);
  fill_conversions<OneBrain>(table, DataType::kBfloat16);
  fill_conversions<EightBitFloat<4, 3, 0x7f>>(table, DataType::kFloat8e4m3);
  fill_conversions<EightBitFloat<5, 2, 0x7c>>(table, DataType::kFloat8e5m2);
}

}  // namespace
}  // namespace tutti
