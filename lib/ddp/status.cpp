#include "status.h"

#include <cstdarg>
#include <cstdio>

namespace tutti::ddp {

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

}  // namespace tutti::ddp
