// A rank's part in what a split or growth gathers on the old communicator, for tests in which it does no more than
// that.
#pragma once

#include "api/handle.h"

namespace tutti_test {

inline tuttiResult_t gather_for(tutti::RedOp purpose, const void* mine, void* all, size_t bytes, tuttiComm_t comm) {
  using namespace tutti;
  const api::Use use(comm);
  const auto done = use->run(use->take_ticket(), {Collective::kAllGather, mine, all, bytes, DataType::kInt8, purpose});
  return done ? tuttiSuccess : tuttiRemoteError;
}

}  // namespace tutti_test
