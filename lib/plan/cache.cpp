#include "plan/cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>

#include "base/env.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"

namespace tutti {
namespace {

constexpr const char* kTitle = "tutti tuning 2";
constexpr size_t kLargestFile = 1 << 20;

// Never destroyed: threads in the background may outlive main.
struct Shelf {
  std::mutex mutex;
  std::map<std::string, Tuning> tunings;
};
Shelf& shelf() {
  static Shelf& it = *new Shelf;
  return it;
}

// The title, the layout, the checksum of what follows, the tuning.
std::string file_text(const std::string& layout, const Tuning& tuning) {
  const std::string body = to_text(tuning);
  return format("%s\n%s\n%016" PRIx64 "\n", kTitle, layout.c_str(), checksum(body)) + body;
}

Result<Tuning> parse_file(const std::string& text, const std::string& layout) {
  std::istringstream stream(text);
  std::string title, whose, sum;
  std::getline(stream, title);
  std::getline(stream, whose);
  std::getline(stream, sum);
  if (title != kTitle) return Error{Code::kInvalidUsage, "it is not a tuning of this version of Tutti"};
  if (whose != layout) return Error{Code::kInvalidUsage, "it was made for '" + whose.substr(0, 200) + "'"};
  const std::string body(text, std::min(text.size(), title.size() + whose.size() + sum.size() + 3));
  if (sum != format("%016" PRIx64, checksum(body))) return Error{Code::kInvalidUsage, "its checksum is wrong"};
  return tuning_from_text(body);
}

std::optional<Tuning> load(const std::string& path, const std::string& layout) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0) return std::nullopt;
  std::string text(std::min<size_t>(static_cast<size_t>(info.st_size), kLargestFile), '\0');
  const ssize_t got = S_ISREG(info.st_mode) ? ::read(file.get(), text.data(), text.size()) : 0;
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  auto tuning = parse_file(text, layout);
  if (tuning) return std::move(tuning).value();
  log(LogLevel::kWarn,
      "%s is ignored, and replaced when there is something to keep: %s; TUTTI_TUNE_CACHE names another directory",
      path.c_str(), tuning.error().message.c_str());
  return std::nullopt;
}

void make_directories(const std::string& directory) {
  for (size_t at = 1; at != std::string::npos;) {
    at = directory.find('/', at + 1);
    // What cannot be made shows when the file is opened.
    if (mkdir(directory.substr(0, at).c_str(), 0777) != 0 && errno != EEXIST) return;
  }
}

void join(Tuning* all, const Tuning& more) {
  if (more.probed || !all->probed) {
    all->prices = more.prices;
    all->probed = more.probed;
  }
  for (const auto& [key, results] : more.raced) all->raced[key] = results;
}

}  // namespace

std::string cache_directory() {
  const std::string wanted = env_string(Env::kTuneCache);
  if (wanted == "off") return "";
  if (!wanted.empty()) return wanted;
  const char* caches = getenv("XDG_CACHE_HOME");
  if (caches != nullptr && *caches == '/') return std::string(caches) + "/tutti";
  const char* home = getenv("HOME");
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/tutti" : "";
}

std::string cache_file(const std::string& directory, const std::string& layout) {
  return directory + format("/%016" PRIx64 ".tuning", checksum(kTitle + ("\n" + layout)));
}

std::optional<Tuning> recall_tuning(const std::string& layout) {
  const std::lock_guard lock(shelf().mutex);
  const auto found = shelf().tunings.find(layout);
  if (found != shelf().tunings.end()) return found->second;
  const std::string directory = cache_directory();
  if (directory.empty()) return std::nullopt;
  auto tuning = load(cache_file(directory, layout), layout);
  if (tuning) shelf().tunings[layout] = *tuning;
  return tuning;
}

void keep_tuning(const std::string& layout, const Tuning& tuning) {
  const std::lock_guard lock(shelf().mutex);
  Tuning& all = shelf().tunings[layout];
  join(&all, tuning);
  const std::string directory = cache_directory();
  if (directory.empty()) return;
  make_directories(directory);
  const std::string path = cache_file(directory, layout);
  const auto written = write_file(path, file_text(layout, all), 0600);
  if (!written) log(LogLevel::kInfo, "the tuning is not kept: %s", written.error().message.c_str());
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace tutti
