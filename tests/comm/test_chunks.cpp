// How blocks are cut into chunks, and all-reduces in which some chunks exceed a network packet by a little.
#include "comm/ranks.h"
#include "exec/chunks.h"

using namespace tutti_test;
using tutti::ChunkLayout;

namespace {

constexpr uint32_t kSlot = 1 << 16, kSegment = 6400;

struct Shape {
  uint64_t wrong = 0, full_segments = 0, ends = 0;  // messages whose last segment is not full
};

// Of all chunks, in order, piece by piece.
Shape shape_of(uint64_t block_elems, size_t elem_bytes, uint32_t n_chunks, uint32_t segment_bytes,
               uint32_t pieces = 1) {
  const ChunkLayout layout(elem_bytes, n_chunks,
                           {.slot_bytes = kSlot, .segment_bytes = segment_bytes, .pieces = pieces}),
      roomy(elem_bytes, n_chunks, {1u << 30, segment_bytes});
  const uint64_t rounds = layout.rounds(block_elems);
  Shape shape;
  uint64_t next = 0;
  for (uint64_t chunk = 0; chunk < n_chunks; chunk++) {
    shape.wrong += roomy.part(block_elems, 1, 0, chunk).begin != next;  // also with other slots
    for (uint64_t round = 0; round < rounds; round++) {
      const auto [begin, elems] = layout.part(block_elems, rounds, round, chunk);
      const uint64_t bytes = elems * elem_bytes;
      shape.wrong += begin != next || bytes > kSlot || (elems > 0 && begin * elem_bytes % 64 != 0);
      shape.full_segments += bytes / kSegment;
      shape.ends += bytes % kSegment != 0;
      next = begin + elems;
    }
  }
  shape.wrong += next != block_elems;
  return shape;
}

}  // namespace

TEST_CASE("chunks cover a block, one after the other, on cache lines, and fit their slots") {
  for (const uint32_t segment_bytes : {0u, kSegment, 64u, kSlot, 2 * kSlot})
    for (const size_t elem_bytes : {size_t{1}, size_t{2}, size_t{4}, size_t{8}})
      for (const uint32_t n_chunks : {1u, 2u, 3u, 4u, 8u, 33u})
        for (uint64_t bytes : {uint64_t{0}, uint64_t{8}, uint64_t{64}, uint64_t{1000}, uint64_t{kSegment} * n_chunks,
                               uint64_t{kSlot} * n_chunks, uint64_t{kSlot} * n_chunks * 3 + 8, uint64_t{10} << 20})
          for (const uint64_t more : {0, 1, 3, 17, 100}) {
            INFO(bytes << " bytes and " << more << " elements of " << elem_bytes << ", " << n_chunks << " chunks");
            for (const uint32_t pieces : {1u, 3u})
              CHECK(shape_of(bytes / elem_bytes + more, elem_bytes, n_chunks, segment_bytes, pieces).wrong == 0);
          }
}

TEST_CASE("chunks that should go in pieces do so if no piece gets too short, whatever their slots hold") {
  for (const size_t elem_bytes : {size_t{1}, size_t{4}, size_t{8}}) {
    const auto rounds = [&](uint64_t block_bytes, uint32_t slot_bytes, uint32_t n_chunks = 1) {
      const ChunkLayout layout(elem_bytes, n_chunks, {.slot_bytes = slot_bytes, .pieces = 3});
      return layout.rounds(block_bytes / elem_bytes);
    };
    constexpr uint64_t kLeast = tutti::kLeastPieceBytes;
    CHECK(rounds(0, 128 << 10) == 1);
    CHECK(rounds(2 * kLeast - 64, 128 << 10) == 1);
    CHECK(rounds(2 * kLeast, 128 << 10) == 2);
    CHECK(rounds(3 * kLeast, 128 << 10) == 3);
    CHECK(rounds(3 * (128 << 10), 128 << 10) == 3);
    CHECK(rounds(4 * (128 << 10), 128 << 10) == 4);
    CHECK(rounds(3 * kLeast, 32 << 10) == 4);
    CHECK(rounds(4 * 2 * kLeast, 128 << 10, 4) == 2);
  }
}

TEST_CASE("broadcasts and reduces in pieces give the right values") {
  const int n = GENERATE(2, 3);
  require_success(run_threads(n, nullptr, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (const size_t bytes : {81919, 81920, 100000, 122881, 131073, 393217})
      for (int root = 0; root < n; root++) {
        std::vector<int8_t> data(bytes + 1, -7), sum(bytes + 1, -7);
        for (size_t i = 0; i < bytes; i++) data[i] = static_cast<int8_t>(i % 29 + static_cast<size_t>(rank));
        outcome.take(tuttiReduce(data.data(), sum.data(), bytes, tuttiInt8, tuttiSum, root, comm, nullptr));
        outcome.take(tuttiBroadcast(sum.data(), sum.data(), bytes, tuttiInt8, root, comm, nullptr));
        for (size_t i = 0; i < bytes; i++)
          outcome.wrong += sum[i] != static_cast<int8_t>(static_cast<int>(i % 29) * n + n * (n - 1) / 2);
        outcome.wrong += sum[bytes] != -7;
      }
  }));
}

TEST_CASE("chunks a little larger than whole segments are cut to those, but for the last") {
  const auto ends = [](uint64_t bytes, uint32_t n_chunks) { return shape_of(bytes / 4, 4, n_chunks, kSegment).ends; };
  CHECK(ends(4 * kSegment, 4) == 0);
  CHECK(ends(4 * kSegment + 4, 4) == 1);
  CHECK(ends(4 * kSegment + 400, 4) == 1);
  CHECK(ends(4 * (10 * kSegment + 100), 4) == 1);
  CHECK(ends(4 * (kSegment + 1000), 4) == 4);  // else the last chunk would be far larger than the others
  CHECK(ends(4 * (kSegment / 2), 4) == 4);     // less than one segment
  // In several rounds, too, unless the last chunk would not fit its slot.
  CHECK(ends(3 * 4 * 9 * kSegment + 4, 4) == 1);
  CHECK(ends(3 * 4 * kSlot, 4) == 3 * 4);
}

TEST_CASE("all-reduce over TCP gives the right values where chunks are cut to what a packet holds") {
  const char* algo = GENERATE("ring", "direct", "circulant");
  const int n = GENERATE(2, 4);
  INFO(algo << " with " << n << " ranks");
  tuttiConfig_t config = TUTTI_CONFIG_INITIALIZER;
  config.transports = "tcp";
  config.algo = algo;
  require_success(run_threads(n, &config, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    for (const size_t chunk_bytes : {65088, 65536, 262144, 524288, 1 << 20})
      for (const int more : {-1, 0, 1}) {
        if (kSanitized && chunk_bytes > 262144) continue;
        const size_t count = chunk_bytes / sizeof(int32_t) * static_cast<size_t>(n) + static_cast<size_t>(more);
        std::vector<int32_t> data(count + 1, -7), sum(count + 1, -7);
        for (size_t i = 0; i < count; i++) data[i] = static_cast<int32_t>(i) * (rank + 1);
        const auto check = [&](const std::vector<int32_t>& result) {
          for (size_t i = 0; i < count; i++) outcome.wrong += result[i] != static_cast<int32_t>(i) * n * (n + 1) / 2;
          outcome.wrong += result[count] != -7;
        };
        outcome.take(tuttiAllReduce(data.data(), sum.data(), count, tuttiInt32, tuttiSum, comm, nullptr));
        check(sum);
        outcome.take(tuttiAllReduce(data.data(), data.data(), count, tuttiInt32, tuttiSum, comm, nullptr));
        check(data);
      }
  }));
}
