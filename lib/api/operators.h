// The operators that a program creates for one communicator: sums whose inputs each rank multiplies first. All
// functions from any thread.
#pragma once

#include <array>
#include <map>
#include <mutex>

#include "base/dtype.h"
#include "base/result.h"

namespace tutti::api {

struct PreMulSum {
  DataType dtype = DataType::kInt8;
  std::array<char, 8> scalar{};     // the factor, one element of dtype
  const void* scalar_at = nullptr;  // or where to read it when an operation runs
};

class Operators {
 public:
  // Returns the new operator's number: above the built-in ones, and different from all numbers given out lately, by
  // other communicators too, so that their operators and removed ones are recognised.
  int add(const PreMulSum& made);
  Result<void> remove(int op);
  Result<PreMulSum> find(int op) const;

 private:
  mutable std::mutex mutex_;
  std::map<int, PreMulSum> made_;
};

}  // namespace tutti::api
