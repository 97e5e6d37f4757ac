#include "status.h"

#include <cstdarg>
#include <cstdio>

namespace tutti::perf {

Status library_error(const char* call, tuttiResult_t result, tuttiComm_t comm) {
  const char* sentence = tuttiGetLastError(comm);
  return Error{text("%s: %s: %s", call, tuttiGetErrorString(result), sentence)};
}

std::string text(const char* fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  std::string out(static_cast<size_t>(vsnprintf(nullptr, 0, fmt, args)), '\0');
  vsnprintf(out.data(), out.size() + 1, fmt, again);
  va_end(again);
  va_end(args);
  return out;
}

std::string human_bytes(double bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); unit++) bytes /= 1024;
  return text("%.*f %s", unit == 0 ? 0 : 1, bytes, units[unit]);
}

}  // namespace tutti::perf
