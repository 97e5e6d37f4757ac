// The functions of trace.h.
#include "tutti/trace.h"

#include "api/checks.h"
#include "base/places.h"

using namespace tutti;       // NOLINT: this file is the boundary
using namespace tutti::api;  // NOLINT

extern "C" {

tuttiResult_t tuttiDumpTrace(tuttiComm_t comm, const char* path) {
  return guarded([&]() -> Result<void> {
    if (path == nullptr) return invalid_argument("path is NULL");
    if (comm == nullptr) return dump_traces(path);
    TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
    return dump_trace(use->monitor().recorder(), path);
  });
}

tuttiResult_t tuttiCommExplainWait(tuttiComm_t comm, char* text, size_t* bytes) {
  return guarded([&]() -> Result<void> {
    TUTTI_TRY(check_text(text, bytes));
    TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
    give_text(use->explain_wait(), text, bytes);
    return {};
  });
}

tuttiResult_t tuttiCommLateness(tuttiComm_t comm, int rank, tuttiLateness_t* lateness) {
  return guarded([&]() -> Result<void> {
    if (lateness == nullptr) return invalid_argument("lateness is NULL");
    if (lateness->size < sizeof *lateness)
      return invalid_argument(format("lateness->size=%zu: start from TUTTI_LATENESS_INITIALIZER", lateness->size));
    TUTTI_TRY_ASSIGN(const Use use, use_of(comm));
    if (rank < 0 || rank >= use->n_ranks())
      return invalid_argument(format("rank=%d: give one from 0 to %d", rank, use->n_ranks() - 1));
    const StragglerDetector::Rank found = use->monitor().lateness(rank);
    const auto seconds = [](int64_t ns) { return static_cast<double>(ns) / 1e9; };
    *lateness = {lateness->size,         found.operations,        found.late,
                 seconds(found.late_ns), seconds(found.worst_ns), seconds(found.waited_ns)};
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
