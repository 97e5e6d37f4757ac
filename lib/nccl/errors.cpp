// What ncclGetLastError returns.
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#include "nccl/shim.h"

namespace tutti::nccl {
namespace {

// The sentence of the calling thread's last error, if that was not one of Tutti's.
thread_local char t_sentence[512];

// The calling thread's group, and the first of its calls that was refused before Tutti was called.
struct Group {
  int depth = 0;
  ncclResult_t refusal = tuttiSuccess;
  char sentence[sizeof t_sentence] = "";
};
thread_local Group t_group;

}  // namespace

ncclResult_t passed(tuttiResult_t result) {
  if (result != tuttiSuccess) t_sentence[0] = '\0';
  return result;
}

ncclResult_t refused(tuttiResult_t code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(t_sentence, sizeof t_sentence, format, arguments);
  va_end(arguments);
  return code;
}

ncclResult_t fail_group(ncclResult_t refusal) {
  if (t_group.depth == 0 || t_group.refusal != tuttiSuccess) return refusal;
  t_group.refusal = refusal;
  memcpy(t_group.sentence, t_sentence, sizeof t_sentence);
  tuttiCommInitRankScalable(nullptr, 0, 0, 0, nullptr, nullptr);  // an invalid call: Tutti's group does not run, either
  return refusal;
}

void group_starts() {
  t_group.depth++;
}

ncclResult_t group_ends(tuttiResult_t result) {
  if (t_group.depth > 0 && --t_group.depth > 0) return passed(result);
  const ncclResult_t refusal = std::exchange(t_group.refusal, tuttiSuccess);
  if (refusal == tuttiSuccess) return passed(result);
  return refused(static_cast<tuttiResult_t>(refusal), "no call of this group was run, because one of them failed: %s",
                 t_group.sentence);
}

ncclResult_t unsupported(const char* function, const char* instead) {
  return refused(tuttiInvalidUsage, "Tutti's libnccl.so.2 does not have %s: %s", function, instead);
}

}  // namespace tutti::nccl

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  return tuttiGetErrorString(static_cast<tuttiResult_t>(result));
}

const char* ncclGetLastError(ncclComm_t comm) {
  using tutti::nccl::t_sentence;
  return t_sentence[0] != '\0' ? t_sentence : tuttiGetLastError(comm);
}

}  // extern "C"
