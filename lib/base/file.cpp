#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/handshake.h"
#include "base/limits.h"

namespace tutti {
namespace {

// 0 or errno, including that of the open() just before, if it failed.
int write_and_close(Fd file, std::string_view bytes) {
  if (!file) return errno;
  while (!bytes.empty()) {
    const ssize_t n = ::write(file.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return ::close(file.release()) == 0 ? 0 : errno;
}

int replace(const std::string& path, std::string_view bytes, mode_t mode) {
  uint32_t number = 0;
  random_bytes(&number, sizeof number);
  const std::string beside = path + format(".%08x", number);
  Fd file(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file) return errno;
  int reason = write_and_close(std::move(file), bytes);
  if (reason == 0 && rename(beside.c_str(), path.c_str()) != 0) reason = errno;
  if (reason != 0) unlink(beside.c_str());
  return reason;
}

bool is_special(const std::string& path) {
  struct stat there {};
  return lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
}

Result<void> written(const std::string& path, int reason) {
  if (reason != 0) return system_error("writing " + path, reason);
  return {};
}

}  // namespace

Fd open_to_write(const std::string& path, int flags, mode_t mode) {
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | flags, mode));
  if (file) ::fcntl(file.get(), F_SETFL, flags & O_APPEND);  // writing waits
  return file;
}

Result<void> write_file(const std::string& path, std::string_view bytes, mode_t mode) {
  const NoWriteSignal quiet;
  if (!is_special(path)) return written(path, replace(path, bytes, mode));
  return written(path, write_and_close(open_to_write(path, O_TRUNC, mode), bytes));
}

std::string written_at(const std::string& path) {
  std::error_code no_folder;  // this process's own may be gone
  return is_special(path) ? path : std::filesystem::absolute(path, no_folder).parent_path().string();
}

Result<void> check_writable(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    return Error{Code::kSystemError, path + " cannot be written: " + strerror(EISDIR)};
  const std::string at = written_at(path);
  if (access(at.c_str(), W_OK) == 0) return {};
  return Error{Code::kSystemError, path + " cannot be written: " + at + ": " + strerror(errno)};
}

Result<void> replace_file(const std::string& path, std::string_view bytes, mode_t mode) {
  const NoWriteSignal quiet;
  if (is_special(path)) return Error{Code::kSystemError, "writing " + path + ": it exists and is not a regular file"};
  return written(path, replace(path, bytes, mode));
}

Result<std::string> read_all(const std::string& path, const Fd& file, size_t enough_bytes) {
  std::string bytes;
  char some[1 << 14];
  for (ssize_t n = 1; n != 0 && bytes.size() < enough_bytes;) {
    n = ::read(file.get(), some, sizeof some);
    if (n < 0 && errno != EINTR) return system_error("reading " + path, errno);
    if (n > 0) bytes.append(some, static_cast<size_t>(n));
  }
  return bytes;
}

Result<std::string> read_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_error("reading " + path, errno);
  return read_all(path, file);
}

std::string first_line(const std::string& path) {
  const auto text = read_file(path);
  return text ? text.value().substr(0, text.value().find('\n')) : "";
}

std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return names;
  while (const dirent* entry = readdir(entries))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(entries);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tutti
