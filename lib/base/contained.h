// Turns exceptions of the standard library, mostly failed allocations, into errors.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "base/result.h"

namespace tutti {

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
