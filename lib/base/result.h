// base: what every other room builds on: results, logging, environment, clocks, descriptors, sockets, authentication.
// It includes no other room of Tutti. Everything here is a value or a free function; unless a header says otherwise,
// functions are safe to call from any thread and never block.
#pragma once

#include <exception>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace tutti {

// The numbers are those of tuttiResult_t (lib/api asserts it), which are NCCL's.
enum class Code : int {
  kSuccess = 0,
  kCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};

// An error is a value that may cross threads, processes and finally the C boundary. `message` is a sentence that says
// what failed and what to do about it; `culprit_rank` is the rank whose loss or mistake caused it, -1 if none.
struct Error {
  Code code = Code::kInternalError;
  std::string message;
  int culprit_rank = -1;
  int sys_errno = 0;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}
  explicit operator bool() const { return v_.index() == 0; }
  T& value() & { return std::get<0>(v_); }
  const T& value() const& { return std::get<0>(v_); }
  T&& value() && { return std::get<0>(std::move(v_)); }
  Error& error() & { return std::get<1>(v_); }
  const Error& error() const& { return std::get<1>(v_); }
  Error&& error() && { return std::get<1>(std::move(v_)); }

 private:
  std::variant<T, Error> v_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  explicit operator bool() const { return !error_.has_value(); }
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_;
};

// "open /dev/x: Permission denied", with errno kept; adds the remedy if a process limit is the cause.
Error system_error(std::string what, int sys_errno);

// printf into a std::string.
std::string format(const char* fmt, ...) __attribute__((format(printf, 1, 2)));

// Exceptions of the standard library, mostly failed allocations, become errors here.
//
// Call it in a catch clause: the current exception as an error.
inline Error caught() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return {Code::kSystemError, "out of memory"};
  } catch (const std::exception& e) {
    return {Code::kInternalError, std::string("unexpected exception: ") + e.what()};
  } catch (...) {
    return {Code::kInternalError, "unexpected exception"};
  }
}

// `body` returns a Result.
template <class Body>
std::invoke_result_t<Body&> contained(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return caught();
  }
}

}  // namespace tutti

#define TUTTI_CONCAT_(a, b) a##b
#define TUTTI_CONCAT(a, b) TUTTI_CONCAT_(a, b)

// Returns the error of `expr` from the calling function.
#define TUTTI_TRY(expr)                                                              \
  do {                                                                               \
    if (auto tutti_try_ = (expr); !tutti_try_) return std::move(tutti_try_).error(); \
  } while (0)

// `lhs` = the value of `expr`, or returns its error.
#define TUTTI_TRY_ASSIGN(lhs, expr) TUTTI_TRY_ASSIGN_(TUTTI_CONCAT(tutti_try_, __LINE__), lhs, expr)
#define TUTTI_TRY_ASSIGN_(tmp, lhs, expr)  \
  auto tmp = (expr);                       \
  if (!tmp) return std::move(tmp).error(); \
  lhs = std::move(tmp).value()
