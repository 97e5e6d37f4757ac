// Which samples a rank gets, and data that one rank sends to others.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "ddp/model.h"

using namespace tutti_test;

namespace {

tuttiDdpSampler_t sampler_of(uint64_t size, int nranks, int rank, int shuffle, int drop_last) {
  tuttiDdpSampler_t sampler = TUTTI_DDP_SAMPLER_INITIALIZER;
  sampler.datasetSize = size;
  sampler.nranks = nranks;
  sampler.rank = rank;
  sampler.shuffle = shuffle;
  sampler.dropLast = drop_last;
  return sampler;
}

std::vector<uint64_t> samples(const tuttiDdpSampler_t& sampler) {
  uint64_t length = 0;
  REQUIRE(tuttiDdpSamplerLength(&sampler, &length) == tuttiSuccess);
  std::vector<uint64_t> out(length);
  REQUIRE(tuttiDdpSamplerIndices(&sampler, 0, length, out.data()) == tuttiSuccess);
  return out;
}

// A list of all indices, padded from its front or truncated, then dealt out round-robin.
std::vector<uint64_t> dealt(uint64_t size, int nranks, int rank, bool drop_last) {
  std::vector<uint64_t> list(size);
  std::iota(list.begin(), list.end(), uint64_t{0});
  const auto ranks = static_cast<uint64_t>(nranks);
  if (drop_last) {
    while (list.size() % ranks != 0) list.pop_back();
  } else {
    for (uint64_t i = 0; list.size() % ranks != 0; i++) list.push_back(list[i]);
  }
  std::vector<uint64_t> out;
  for (uint64_t i = static_cast<uint64_t>(rank); i < list.size(); i += ranks) out.push_back(list[i]);
  return out;
}

}  // namespace

TEST_CASE("without shuffling samples are dealt out in turn") {
  for (const uint64_t size : {0, 1, 2, 7, 24, 25})
    for (const int nranks : {1, 2, 3, 4, 8, 60})
      for (int rank = 0; rank < nranks; rank++)
        for (const int drop_last : {0, 1}) {
          INFO(size << " samples, rank " << rank << " of " << nranks << ", drop_last " << drop_last);
          REQUIRE(samples(sampler_of(size, nranks, rank, 0, drop_last)) == dealt(size, nranks, rank, drop_last != 0));
        }
}

TEST_CASE("shuffled, every sample comes once in an epoch, in another order in each") {
  for (const uint64_t size : {1, 2, 5, 64, 1000, 65537}) {
    std::set<std::vector<uint64_t>> orders;
    for (const uint64_t epoch : {0, 1, 2})
      for (const uint64_t seed : {0, 1}) {
        std::vector<uint64_t> all;
        for (int rank = 0; rank < 4; rank++) {
          auto sampler = sampler_of(size, 4, rank, 1, 0);
          sampler.epoch = epoch;
          sampler.seed = seed;
          const auto mine = samples(sampler);
          all.insert(all.end(), mine.begin(), mine.end());
        }
        const std::set<uint64_t> distinct(all.begin(), all.end());
        REQUIRE(distinct.size() == size);
        REQUIRE(*distinct.rbegin() == size - 1);
        orders.insert(all);
      }
    if (size >= 64) REQUIRE(orders.size() == 6);
  }
}

TEST_CASE("shuffling prefers no place") {
  constexpr uint64_t kSize = 7, kSeeds = 7000;
  std::vector<std::vector<int>> counts(kSize, std::vector<int>(kSize));
  for (uint64_t seed = 0; seed < kSeeds; seed++) {
    auto sampler = sampler_of(kSize, 1, 0, 1, 0);
    sampler.seed = seed;
    const auto order = samples(sampler);
    for (uint64_t i = 0; i < kSize; i++) counts[i][order[i]]++;
  }
  // 1000 each are expected, with a standard deviation of 29.
  for (const auto& row : counts)
    for (const int count : row) CHECK(std::abs(count - 1000) < 180);
}

TEST_CASE("a piece of a rank's samples is that piece; wrong arguments are refused") {
  const auto sampler = sampler_of(100, 3, 1, 1, 0);
  const auto all = samples(sampler);
  std::vector<uint64_t> piece(10);
  REQUIRE(tuttiDdpSamplerIndices(&sampler, 20, 10, piece.data()) == tuttiSuccess);
  CHECK(std::equal(piece.begin(), piece.end(), all.begin() + 20));
  CHECK(tuttiDdpSamplerIndices(&sampler, 34, 0, nullptr) == tuttiSuccess);
  CHECK(tuttiDdpSamplerIndices(&sampler, 34, 1, piece.data()) == tuttiInvalidArgument);
  CHECK(contains(tuttiDdpGetLastError(), "this rank has 34 samples"));
  CHECK(tuttiDdpSamplerIndices(&sampler, ~uint64_t{0}, 2, piece.data()) == tuttiInvalidArgument);
  CHECK(tuttiDdpSamplerIndices(&sampler, 0, 2, nullptr) == tuttiInvalidArgument);
  uint64_t length = 0;
  for (const auto& wrong : {sampler_of(1, 0, 0, 0, 0), sampler_of(1, 2, 2, 0, 0), sampler_of(1, 2, -1, 0, 0),
                            sampler_of((uint64_t{1} << 62) + 1, 2, 0, 0, 0)})
    CHECK(tuttiDdpSamplerLength(&wrong, &length) == tuttiInvalidArgument);
  CHECK(tuttiDdpSamplerLength(nullptr, &length) == tuttiInvalidArgument);
  CHECK(tuttiDdpSamplerLength(&sampler, nullptr) == tuttiInvalidArgument);
}

TEST_CASE("one rank of each group loads, the others get the data with shape and metadata") {
  on_ranks(6, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    tuttiComm_t group = nullptr;
    outcome.take(tuttiCommSplit(comm, rank % 3, rank, &group, nullptr));  // [0, 3], [1, 4], [2, 5]
    const int loader = rank % 3;
    const size_t rows = static_cast<size_t>(loader) * 50;  // the first group's table is empty
    std::vector<double> table(rows * 7);
    for (size_t i = 0; i < table.size(); i++) table[i] = static_cast<double>(i) + loader * 1000;
    std::string what = "group of rank " + std::to_string(loader);
    tuttiDdpData_t data = TUTTI_DDP_DATA_INITIALIZER;
    if (rank < 3)
      data = {.size = sizeof data,
              .data = table.data(),
              .datatype = tuttiFloat64,
              .ndim = 2,
              .shape = {rows, 7},
              .metadata = what.data(),
              .metadataBytes = what.size()};
    take(outcome, tuttiDdpBroadcastData(&data, 0, group));
    outcome.wrong += data.datatype != tuttiFloat64 || data.ndim != 2 || data.shape[0] != rows || data.shape[1] != 7;
    outcome.wrong += std::string(static_cast<char*>(data.metadata), data.metadataBytes) != what;
    outcome.wrong += !std::equal(table.begin(), table.end(), static_cast<double*>(data.data));
    if (rank >= 3) {
      take(outcome, tuttiDdpFreeData(&data));
      outcome.wrong += data.data != nullptr || data.metadata != nullptr;
    }
    outcome.take(tuttiCommDestroy(group));
  });
}

TEST_CASE("a data set is divided by rows, also where they do not come out even") {
  const size_t rows = GENERATE(size_t{0}, size_t{2}, size_t{3}, size_t{100});
  constexpr int kRoot = 1;
  on_ranks(3, [&](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<int32_t> table(rows * 4);
    std::iota(table.begin(), table.end(), 0);
    char what[] = "rows";
    tuttiDdpData_t part = TUTTI_DDP_DATA_INITIALIZER;
    const tuttiDdpData_t all = {.size = sizeof all,
                                .data = table.data(),
                                .datatype = tuttiInt32,
                                .ndim = 3,
                                .shape = {rows, 2, 2},
                                .metadata = what,
                                .metadataBytes = sizeof what};
    take(outcome, tuttiDdpScatterData(rank == kRoot ? &all : nullptr, &part, kRoot, comm));
    const auto r = static_cast<size_t>(rank);
    const size_t more = rows % 3, first = r * (rows / 3) + std::min(r, more), mine = rows / 3 + (r < more ? 1 : 0);
    outcome.wrong += part.ndim != 3 || part.shape[0] != mine || part.shape[2] != 2 || part.datatype != tuttiInt32;
    for (size_t i = 0; i < mine * 4; i++)
      outcome.wrong += static_cast<int32_t*>(part.data)[i] != static_cast<int32_t>(first * 4 + i);
    outcome.wrong += part.metadataBytes != sizeof what || memcmp(part.metadata, what, sizeof what) != 0;
    take(outcome, tuttiDdpFreeData(&part));
  });
}

TEST_CASE("metadata alone go to all ranks") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    char what[] = "epoch 7";
    tuttiDdpData_t data = TUTTI_DDP_DATA_INITIALIZER, part = TUTTI_DDP_DATA_INITIALIZER;
    if (rank == 1) {
      data.metadata = what;
      data.metadataBytes = sizeof what;
    }
    take(outcome, tuttiDdpScatterData(&data, &part, 1, comm));
    take(outcome, tuttiDdpBroadcastData(&data, 1, comm));
    for (const tuttiDdpData_t& each : {data, part})
      outcome.wrong += each.ndim != 0 || each.data != nullptr || each.metadataBytes != sizeof what ||
                       memcmp(each.metadata, what, sizeof what) != 0;
    take(outcome, tuttiDdpFreeData(&part));
    if (rank == 0) take(outcome, tuttiDdpFreeData(&data));
  });
}

TEST_CASE("wrong data of the root are an error on all ranks, and nobody waits") {
  const auto refuse = [](const std::string& part, const std::function<void(tuttiDdpData_t&, int&)>& change) {
    require_error(2, tuttiInvalidArgument, {part}, [&](int, tuttiComm_t comm, Outcome& outcome) {
      char bytes[12] = {};
      int root = 1;
      tuttiDdpData_t data = TUTTI_DDP_DATA_INITIALIZER;
      data.data = bytes;
      data.ndim = 1;
      data.shape[0] = sizeof bytes;
      change(data, root);
      take(outcome, tuttiDdpBroadcastData(&data, root, comm));
      outcome.take(tuttiBarrier(comm, nullptr));
    });
  };
  refuse("rank 1: data->ndim=9", [](auto& data, int&) { data.ndim = 9; });
  refuse("rank 1: data->data is NULL", [](auto& data, int&) { data.data = nullptr; });
  refuse("data->datatype=77", [](auto& data, int&) { data.datatype = static_cast<tuttiDataType_t>(77); });
  refuse("than memory can hold", [](auto& data, int&) {
    data.ndim = 2;
    data.shape[0] = data.shape[1] = size_t{1} << 40;
  });
  refuse("metadataBytes=3", [](auto& data, int&) { data.metadataBytes = 3; });
  refuse("root=2", [](auto&, int& root) { root = 2; });
  refuse("TUTTI_DDP_DATA_INITIALIZER", [](auto& data, int&) { data.size = 0; });
}

TEST_CASE("the struct of a data set may be the place for the root's part") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    std::vector<int32_t> table = {10, 11, 12, 13, 14, 15};
    char what[] = "rows";
    tuttiDdpData_t data = TUTTI_DDP_DATA_INITIALIZER;
    if (rank == 0)
      data = {.size = sizeof data,
              .data = table.data(),
              .datatype = tuttiInt32,
              .ndim = 1,
              .shape = {table.size()},
              .metadata = what,
              .metadataBytes = sizeof what};
    take(outcome, tuttiDdpScatterData(&data, &data, 0, comm));
    outcome.wrong += data.shape[0] != 3 || memcmp(data.metadata, what, sizeof what) != 0;
    for (int i = 0; i < 3; i++) outcome.wrong += static_cast<int32_t*>(data.data)[i] != 10 + 3 * rank + i;
    take(outcome, tuttiDdpFreeData(&data));
  });
}

TEST_CASE("data for which one rank has no room are an error on all ranks, and nobody waits") {
  require_error(2, tuttiSystemError, {"rank 0: ", "memory"}, [](int, tuttiComm_t comm, Outcome& outcome) {
    char byte = 0;
    tuttiDdpData_t data = TUTTI_DDP_DATA_INITIALIZER;
    data.data = &byte;
    data.ndim = 1;
    data.shape[0] = size_t{1} << 55;  // more than the root has, but no rank gets that far
    take(outcome, tuttiDdpBroadcastData(&data, 1, comm));
    outcome.take(tuttiBarrier(comm, nullptr));
  });
}

TEST_CASE("data that are missing on the root, and a missing place on another rank, are an error on all ranks") {
  require_error(2, tuttiInvalidArgument, {"rank 1: data is NULL on the root"},
                [](int, tuttiComm_t comm, Outcome& outcome) {
                  tuttiDdpData_t part = TUTTI_DDP_DATA_INITIALIZER;
                  take(outcome, tuttiDdpScatterData(nullptr, &part, 1, comm));
                });
  require_error(2, tuttiInvalidArgument, {"rank 0: the output data is NULL"},
                [](int rank, tuttiComm_t comm, Outcome& outcome) {
                  tuttiDdpData_t data = TUTTI_DDP_DATA_INITIALIZER;
                  take(outcome, tuttiDdpBroadcastData(rank == 0 ? nullptr : &data, 1, comm));
                });
}

TEST_CASE("a shape without elements may have any other lengths") {
  on_ranks(2, [](int rank, tuttiComm_t comm, Outcome& outcome) {
    constexpr size_t kLong = size_t{1} << 40;
    tuttiDdpData_t data = TUTTI_DDP_DATA_INITIALIZER;
    if (rank == 0) {
      data.ndim = 3;
      data.shape[0] = data.shape[1] = kLong;
    }
    take(outcome, tuttiDdpBroadcastData(&data, 0, comm));
    outcome.wrong += data.ndim != 3 || data.shape[0] != kLong || data.shape[1] != kLong || data.shape[2] != 0;
    outcome.wrong += data.data != nullptr;
  });
}
