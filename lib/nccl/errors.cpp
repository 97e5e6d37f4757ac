// What ncclGetLastError tells.
#include <cstdarg>
#include <cstdio>

#include "nccl/shim.h"

namespace tutti::nccl {
namespace {

// Of the calling thread's last error, if it was not one of Tutti's.
thread_local char t_sentence[512];

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
