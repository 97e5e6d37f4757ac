// Small files: reading and writing them whole, their first line; folders. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace tutti {

// Readers find the old file or the new one, never half of either: it is written beside and renamed. What is there
// already and is no regular file (a pipe, a terminal, a link) is written itself. Errors: kSystemError, naming `path`.
Result<void> write_file(const std::string& path, std::string_view bytes, mode_t mode = 0666);
// What has to be writable for that: the folder, or what is there already and is no regular file.
std::string written_at(const std::string& path);

// As write_file(), but only of a regular file, or where there is none: what somebody else may have put there, as a
// link, is neither followed nor replaced. Errors: kSystemError, naming `path`.
Result<void> replace_file(const std::string& path, std::string_view bytes, mode_t mode = 0666);

// All of it. A folder can be opened, but not read, of which streams throw. Errors: kSystemError, naming `path`.
Result<std::string> read_file(const std::string& path);
// The same of one that is open, until there is enough.
Result<std::string> read_all(const std::string& path, const Fd& file, size_t enough_bytes = SIZE_MAX);

// As the kernel's files in /proc and /sys have it, without its end. "" where there is no file.
std::string first_line(const std::string& path);

// The names of what is in a folder, in their order, but for those that begin with a dot. None where there is no folder.
std::vector<std::string> entries_of(const std::string& folder);

}  // namespace tutti
