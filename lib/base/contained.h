// Where exceptions end: those of the standard library, mostly of allocations that fail, become errors.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "base/result.h"

namespace tutti {

template <class Body>
Result<void> contained(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{Code::kSystemError, "out of memory"};
  } catch (const std::exception& e) {
    return Error{Code::kInternalError, std::string("unexpected: ") + e.what()};
  } catch (...) {
    return Error{Code::kInternalError, "unexpected exception"};
  }
}

}  // namespace tutti
