// ddp: gradients in buckets, averaged while the backward pass runs. It uses the public headers only, as a user's
// program could, and therefore has an error type of its own. reducer.h is the main header.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "tutti/ddp.h"

namespace tutti::ddp {

struct Error {
  tuttiResult_t code = tuttiInternalError;
  std::string message;
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

// The result of a function of tutti.h, with its sentence.
inline Status library(tuttiResult_t result) {
  if (result == tuttiSuccess) return {};
  return Error{result, tuttiGetLastError(nullptr)};
}

inline Status invalid_argument(std::string message) {
  return Error{tuttiInvalidArgument, std::move(message)};
}

inline Status invalid_usage(std::string message) {
  return Error{tuttiInvalidUsage, std::move(message)};
}

// printf into a std::string.
__attribute__((format(printf, 1, 2))) inline std::string text(const char* fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  std::string out(static_cast<size_t>(vsnprintf(nullptr, 0, fmt, args)), '\0');
  vsnprintf(out.data(), out.size() + 1, fmt, again);
  va_end(again);
  va_end(args);
  return out;
}

// ---- the C functions ----

// Remembers the sentence for tuttiDdpGetLastError and returns the code.
tuttiResult_t finish(const Status& status);

// Runs the body of an API function; exceptions end here and become codes.
template <class Body>
tuttiResult_t guarded(Body&& body) noexcept {
  try {
    return finish(body());
  } catch (const std::bad_alloc&) {
    return finish(Error{tuttiSystemError, "out of memory"});
  } catch (const std::exception& e) {
    return finish(Error{tuttiInternalError, text("unexpected: %s", e.what())});
  }
}

}  // namespace tutti::ddp
