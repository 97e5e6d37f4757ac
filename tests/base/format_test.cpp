// Texts of numbers and others.
#include <locale.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>

#include "base/result.h"
#include "catch.h"

using namespace tutti;

// A program may set its user's locale, and the flight recorder's JSON and Prometheus' counters are made of such texts.
TEST_CASE("numbers have a point, whatever locale the program has set") {
  char folder[] = "/tmp/tutti-locale-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string command = std::string("localedef -c -i de_DE -f UTF-8 ") + folder + "/comma >/dev/null 2>&1";
  const bool is_made = std::system(command.c_str()) == 0;
  setenv("LOCPATH", folder, 1);
  const locale_t comma = is_made ? newlocale(LC_NUMERIC_MASK, "comma", nullptr) : nullptr;
  unsetenv("LOCPATH");
  std::filesystem::remove_all(folder);
  if (comma == nullptr) {
    WARN("skipped: no locale with a comma can be made here (Debian: locales)");
    return;
  }
  const locale_t before = uselocale(comma);
  char theirs[8];
  snprintf(theirs, sizeof theirs, "%.1f", 1.5);
  const std::string ours = format("%.1f", 1.5);
  const bool is_kept = uselocale(before) == comma;
  freelocale(comma);
  CHECK(std::string(theirs) == "1,5");
  CHECK(ours == "1.5");
  CHECK(is_kept);
}
