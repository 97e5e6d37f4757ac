#include "group/blobs.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "base/bytes.h"

namespace tutti {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
constexpr int kMostSteps = 2;  // patches between a record and a whole one
// A larger patch may be another host's first rank, say, which that host's other ranks resemble more.
constexpr size_t kSmallPatchBytes = 64;

// Heads a run of bytes that differ. The gap between two runs is longer than this header, or it would not pay.
struct Difference {
  uint16_t at, bytes;
};

// False if the differences do not fit a blob of this size. With a null `blob` only checks that.
bool apply(std::string_view differences, size_t blob_bytes, char* blob) {
  while (!differences.empty()) {
    Difference run;
    if (differences.size() < sizeof run) return false;
    memcpy(&run, differences.data(), sizeof run);
    differences.remove_prefix(sizeof run);
    if (run.bytes > differences.size() || run.at + size_t{run.bytes} > blob_bytes) return false;
    if (blob != nullptr) memcpy(blob + run.at, differences.data(), run.bytes);
    differences.remove_prefix(run.bytes);
  }
  return true;
}

Error damaged() {
  return {Code::kInternalError, "the group's root sent a damaged list of blobs"};
}

}  // namespace

std::string differences(std::string_view from, std::string_view blob) {
  ByteWriter w;
  for (size_t at = 0; at < blob.size();) {
    if (from[at] == blob[at]) {
      at++;
      continue;
    }
    size_t end = at + 1;
    for (size_t i = end; i < blob.size() && i - end <= sizeof(Difference) && i - at < UINT16_MAX; i++)
      if (from[i] != blob[i]) end = i + 1;
    w.put(Difference{static_cast<uint16_t>(at), static_cast<uint16_t>(end - at)});
    for (; at < end; at++) w.put(blob[at]);
  }
  return w.take();
}

bool patch(std::string* blob, std::string_view differences) {
  return apply(differences, blob->size(), blob->data());
}

Blobs Blobs::pack(std::span<const std::string> blobs) {
  const auto n = static_cast<uint32_t>(blobs.size());
  const bool all_the_same = std::adjacent_find(blobs.begin(), blobs.end(), std::not_equal_to<>()) == blobs.end();
  const uint32_t n_records = n > 0 && all_the_same ? 1 : n;
  struct Kept {
    uint32_t whole, latest;  // latest: the last one patched from `whole` by more than kSmallPatchBytes
  };
  std::map<size_t, Kept> kept;  // by the blobs' size in bytes
  ByteWriter head;
  std::string records;
  head.put(Head{n, n_records});
  for (uint32_t i = 0; i < n_records; i++) {
    auto [found, is_first] = kept.try_emplace(blobs[i].size(), Kept{i, i});
    Kept& like = found->second;
    uint32_t from = i;
    std::string rest = blobs[i];
    for (const uint32_t other : {like.whole, like.latest}) {
      if (is_first || other == from) continue;
      std::string shorter = differences(blobs[other], blobs[i]);
      if (shorter.size() >= rest.size()) continue;
      rest = std::move(shorter);
      from = other;
    }
    if (from == i) like = {i, i};
    if (from == like.whole && rest.size() > kSmallPatchBytes) like.latest = i;
    records.append(reinterpret_cast<const char*>(&from), sizeof from).append(rest);
    head.put(uint64_t{records.size()});
  }
  return Blobs(head.take() + records);
}

Result<Blobs> Blobs::open(std::string bytes, int n) {
  Blobs blobs(std::move(bytes));
  if (!blobs.is_valid(n)) return damaged();
  return blobs;
}

Blobs::Blobs(std::string bytes) {
  auto memory = std::make_shared<const std::string>(std::move(bytes));
  bytes_ = *memory;
  memory_ = std::move(memory);
}

Result<Blobs> Blobs::map(const Fd& file, int n) {
  struct stat status {};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);  // the kernel adds another if vm.memfd_noexec is set
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(file.get(), &status) != 0) return damaged();
  const auto bytes = static_cast<size_t>(status.st_size);
  MappedMemory memory = map_shared(file, 0, bytes, false);
  if (!memory) return system_error("mapping the introductions of the group's ranks", errno);
  const char* const begin = memory.get();
  const Blobs blobs(std::move(memory), {begin, bytes});
  if (!blobs.is_valid(n)) return damaged();
  return blobs;
}

Fd Blobs::to_file(std::string_view bytes) {
  Fd file(::memfd_create("tutti-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  for (size_t at = 0; file && at < bytes.size();) {
    const ssize_t n = ::write(file.get(), bytes.data() + at, bytes.size() - at);
    if (n > 0) at += static_cast<size_t>(n);
    if (n < 0 && errno != EINTR) file.reset();
  }
  if (file && ::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) file.reset();
  return file;
}

Blobs::Head Blobs::head() const {
  Head head;
  memcpy(&head, bytes_.data(), sizeof head);
  return head;
}

uint64_t Blobs::end_of(size_t record) const {
  uint64_t end;
  memcpy(&end, bytes_.data() + sizeof(Head) + record * sizeof end, sizeof end);
  return end;
}

Blobs::Record Blobs::record(size_t i) const {
  std::string_view bytes = bytes_;
  bytes.remove_prefix(sizeof(Head) + head().n_records * sizeof(uint64_t));
  const uint64_t begin = i == 0 ? 0 : end_of(i - 1);
  Record record{0, bytes.substr(begin, end_of(i) - begin)};
  memcpy(&record.like, record.rest.data(), sizeof record.like);
  record.rest.remove_prefix(sizeof record.like);
  return record;
}

std::string Blobs::decode(size_t i) const {
  const Record mine = record(i);
  if (mine.like == i) return std::string(mine.rest);
  std::string blob = decode(mine.like);
  patch(&blob, mine.rest);
  return blob;
}

std::string Blobs::operator[](size_t i) const {
  return decode(head().n_records == 1 ? 0 : i);
}

bool Blobs::is_valid(int n) const {
  if (bytes_.size() < sizeof(Head)) return false;
  const Head h = head();
  if (h.n != static_cast<uint32_t>(n) || (h.n_records != h.n && h.n_records != 1)) return false;
  const uint64_t records_begin = sizeof(Head) + uint64_t{h.n_records} * sizeof(uint64_t);
  if (bytes_.size() < records_begin) return false;
  uint64_t begin = 0;
  struct Read {
    size_t bytes;
    int steps;  // patches between it and a whole record
  };
  std::vector<Read> read;
  read.reserve(h.n_records);
  for (uint32_t i = 0; i < h.n_records; i++) {
    const uint64_t end = end_of(i);
    if (end < begin || end - begin < sizeof(uint32_t) || end > bytes_.size() - records_begin) return false;
    begin = end;
    const Record mine = record(i);
    if (mine.like > i) return false;
    read.push_back(mine.like == i ? Read{mine.rest.size(), 0} : Read{read[mine.like].bytes, read[mine.like].steps + 1});
    if (mine.like != i && (read[i].steps > kMostSteps || !apply(mine.rest, read[i].bytes, nullptr))) return false;
  }
  return begin == bytes_.size() - records_begin;
}

}  // namespace tutti
