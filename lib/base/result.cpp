#include "base/result.h"

#include <locale.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/limits.h"

namespace tutti {

Error system_error(std::string what, int sys_errno) {
  char buffer[128];
  // GNU strerror_r: thread-safe, returns the text.
  what += std::string(": ") + strerror_r(sys_errno, buffer, sizeof buffer) + limit_remedy(sys_errno);
  return Error{Code::kSystemError, std::move(what), -1, sys_errno};
}

// Always with a decimal point, whatever locale the program has set: other programs read files made of such texts.
std::string format(const char* fmt, ...) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  const locale_t before = uselocale(plain);
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  const int length = vsnprintf(nullptr, 0, fmt, args);
  va_end(args);
  std::string text(static_cast<size_t>(length < 0 ? 0 : length), '\0');
  vsnprintf(text.data(), text.size() + 1, fmt, again);
  va_end(again);
  uselocale(before);
  return text;
}

}  // namespace tutti
