// Starts threads, with a Result like everything else that may fail.
#pragma once

#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/contained.h"
#include "base/result.h"

namespace tutti {

// `which` names the thread in the error if it cannot be started: "a stream's thread".
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
