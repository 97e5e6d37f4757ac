// This header: the blobs of all ranks of a group, packed into one piece of memory that can be sent as it is. The blobs
// are much alike, so only a few of each size are stored whole, and the others as their differences from one of these:
// some 40 bytes for a rank's introduction. A value; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace tutti {

// What turns `from` into `blob`, which has the same size. patch() is false if the differences do not fit the blob.
std::string differences(std::string_view from, std::string_view blob);
bool patch(std::string* blob, std::string_view differences);

class Blobs {
 public:
  // Deterministic: the same blobs give the same bytes on all ranks.
  static Blobs pack(std::span<const std::string> blobs);
  // kInternalError if these are not the bytes of n blobs.
  static Result<Blobs> open(std::string bytes, int n);
  // The same from a memory file that many processes may share; it must be sealed, so that nobody can change it.
  static Result<Blobs> map(const Fd& file, int n);
  // A sealed memory file with these bytes; no file if none can be created.
  static Fd to_file(std::string_view bytes);

  size_t size() const { return head().n; }
  std::string operator[](size_t i) const;
  std::string back() const { return (*this)[size() - 1]; }
  std::string_view bytes() const { return bytes_; }

 private:
  struct Head {
    uint32_t n, n_records;  // a single record if all blobs are the same
  };
  struct Record {
    uint32_t like;          // the record that this one is patched from; itself: stored whole
    std::string_view rest;  // the blob's bytes, or its differences
  };

  explicit Blobs(std::string bytes);
  Blobs(std::shared_ptr<const void> memory, std::string_view bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  Head head() const;
  uint64_t end_of(size_t record) const;
  Record record(size_t i) const;
  std::string decode(size_t record) const;
  bool is_valid(int n) const;

  std::shared_ptr<const void> memory_;
  std::string_view bytes_;  // in memory_
};

}  // namespace tutti
