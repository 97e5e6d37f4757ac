// How all programs read their command line with CLI11, and how they answer a wrong one: exit status 2, and the option
// nearest to one that does not exist. Header only, because some programs are built from the library's objects and some
// are not.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace tutti::cli {

constexpr int kWrongUsage = 2;

inline size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) row[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// The long option of `app` that is most similar to `given`; "" if none is.
inline std::string nearest_option(const CLI::App& app, const std::string& given) {
  std::string nearest;
  size_t least = std::max<size_t>(2, given.size() / 2);  // a larger distance is another word
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const bool begins = given.size() > 4 && ("--" + name).rfind(given, 0) == 0;
      const size_t distance = begins ? 1 : edit_distance(given, "--" + name);
      if (distance < least) nearest = "--" + name, least = distance;
    }
  }
  return nearest;
}

// The first argument that looks like an option and belongs neither to `app` nor to the given subcommand.
inline std::string complaint(const CLI::App& app, const CLI::ParseError& error) {
  const std::string help = "; --help lists the options";
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError)) return error.what() + help;
  std::vector<std::string> extras = app.remaining();
  const CLI::App* command = &app;
  for (const CLI::App* sub : app.get_subcommands()) {
    for (const std::string& extra : sub->remaining()) extras.push_back(extra);
    command = sub;
  }
  if (extras.empty()) return error.what() + help;
  const std::string given = extras[0].substr(0, extras[0].find('='));
  if (given.rfind('-', 0) != 0) return "'" + given + "' was not expected" + help;
  const std::string nearest = given.rfind("--", 0) == 0 ? nearest_option(*command, given) : "";
  return "there is no option " + given + (nearest.empty() ? "" : "; did you mean " + nearest + "?") + help;
}

// For main: parses the arguments; returns an exit status if the program must end now.
inline std::optional<int> parse(CLI::App& app, int argc, const char* const* argv, const char* program) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& done) {  // --help
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    fprintf(stderr, "%s: %s\n", program, complaint(app, error).c_str());
    return kWrongUsage;
  }
}

// For the end of main: the output may have met a full disk. Returns the exit status.
inline int printed(int status, const char* program) {
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return status;
  fprintf(stderr, "%s: stdout cannot be written: %s\n", program, strerror(errno));
  return std::max(status, 1);
}

}  // namespace tutti::cli
