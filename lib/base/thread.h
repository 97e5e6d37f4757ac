// Threads, whose start is a Result like all else that may fail.
#pragma once

#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/contained.h"
#include "base/result.h"

namespace tutti {

// `which` is for the error where there can be no more threads: "a stream's thread".
template <class Body>
Result<std::thread> start_thread(const char* which, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::bad_alloc&) {
    return caught();
  } catch (const std::system_error& e) {
    return system_error(format("starting %s (see ulimit -u)", which), e.code().value());
  }
}

}  // namespace tutti
