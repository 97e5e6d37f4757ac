// What the C functions share: codes and sentences, and the end of all exceptions.
#pragma once

#include <exception>
#include <new>

#include "status.h"

namespace tutti::ddp {

// Remembers the sentence for tuttiDdpGetLastError and gives the code.
tuttiResult_t finish(const Status& status);

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
