// The functions of trace.h.
#include "tutti/trace.h"

#include "api/checks.h"
#include "api/handle.h"
#include "base/places.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

extern "C" {

tuttiResult_t tuttiDumpTrace(tuttiComm_t comm, const char* path) {
  return guarded([&]() -> Result<void> {
    if (path == nullptr) return invalid_argument("path is NULL");
    if (comm == nullptr) return Communicator::dump_traces(path);
    const Use use(comm);
    if (!use) return not_a_comm(comm);
    return use->dump_trace(path);
  });
}

tuttiResult_t tuttiCommExplainWait(tuttiComm_t comm, char* text, size_t* bytes) {
  return guarded([&]() -> Result<void> {
    TUTTI_TRY(check_text(text, bytes));
    const Use use(comm);
    if (!use) return not_a_comm(comm);
    give_text(use->explain_wait(), text, bytes);
    return {};
  });
}

tuttiResult_t tuttiNamePlace(const char* text, uint64_t* place) {
  return guarded([&]() -> Result<void> {
    if (text == nullptr) return invalid_argument("text is NULL");
    if (place == nullptr) return invalid_argument("place is NULL");
    *place = name_place(text);
    return {};
  });
}

tuttiResult_t tuttiSetPlace(uint64_t place) {
  set_place(place);
  return tuttiSuccess;
}

}  // extern "C"
