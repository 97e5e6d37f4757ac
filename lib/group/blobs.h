// This header: what every rank of a group has said, in one piece of memory that can be sent as it is. Ranks say much
// the same, so of blobs of one size few are kept whole, and of the others where they differ from one of those: of a
// rank's introduction some 40 bytes are left. A value; any thread may read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/result.h"

namespace tutti {

// Of blobs of one size: what makes one of the other. patch() is false if the differences are of blobs of another size.
std::string differences(std::string_view from, std::string_view blob);
bool patch(std::string* blob, std::string_view differences);

class Blobs {
 public:
  // The same blobs give the same bytes, on all ranks.
  static Blobs pack(std::span<const std::string> blobs);
  // kInternalError if these are not the bytes of so many blobs.
  static Result<Blobs> open(std::string bytes, int n);
  // The same in a file in memory, which many processes may share: sealed, so that nobody changes it.
  static Result<Blobs> map(const Fd& file, int n);
  // Such a file with these bytes; none where there can be no more.
  static Fd to_file(std::string_view bytes);

  size_t size() const { return head().n; }
  std::string operator[](size_t i) const;
  std::string back() const { return (*this)[size() - 1]; }
  std::string_view bytes() const { return bytes_; }

 private:
  struct Head {
    uint32_t n, n_records;  // one record where all say the same
  };
  struct Record {
    uint32_t like;          // the record that it differs from; itself: it is whole
    std::string_view rest;  // its bytes, or the differences
  };

  explicit Blobs(std::string bytes);
  Blobs(std::shared_ptr<const void> memory, std::string_view bytes) : memory_(std::move(memory)), bytes_(bytes) {}
  Head head() const;
  uint64_t end_of(size_t record) const;
  Record record(size_t i) const;
  std::string decode(size_t record) const;
  bool is_valid(int n) const;

  std::shared_ptr<const void> memory_;
  std::string_view bytes_;  // there
};

}  // namespace tutti
