// The perf tools measure and check Tutti's collectives, with nccl-tests' flags and output. They only use the public
// headers, as any user's program does, and therefore have their own error type.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "tutti/tutti.h"

namespace tutti::perf {

inline constexpr int kExitWrongData = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitFailed = 3;
inline constexpr int kExitOtherFailed = 4;  // another rank has failed and said why

// The more informative of two ranks' exit statuses.
inline int worse(int a, int b) {
  if (a == kExitOtherFailed || b == kExitOtherFailed) return std::min(a, b) == 0 ? std::max(a, b) : std::min(a, b);
  return std::max(a, b);
}

struct Error {
  std::string message;  // empty: another rank, or the table, has said it already
  int exit_status = kExitFailed;
  bool agreed = false;  // all ranks know of it and finalize
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}
  explicit operator bool() const { return !error_.has_value(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

inline Status usage_error(std::string message) {
  return Error{std::move(message), kExitUsage};
}

// "tuttiAllReduce: remote error: rank 3 closed its connection ..." from a failed call.
Status library_error(const char* call, tuttiResult_t result, tuttiComm_t comm);

// printf into a std::string.
std::string text(const char* fmt, ...) __attribute__((format(printf, 1, 2)));
// 1610612736 -> "1.5 GiB"
std::string human_bytes(double bytes);

}  // namespace tutti::perf
