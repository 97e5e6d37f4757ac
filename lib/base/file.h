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

// Opens it for writing, with further `flags`. That a pipe has no reader is an error (ENXIO): nobody may ever come.
Fd open_to_write(const std::string& path, int flags, mode_t mode);

// Replaces the file atomically: writes a temporary file beside it and renames that. If `path` exists and is not a
// regular file (a pipe, a terminal, a link), writes to it directly. Errors: kSystemError, naming `path`.
Result<void> write_file(const std::string& path, std::string_view bytes, mode_t mode = 0666);
// What must be writable for that: the folder, or `path` itself if it exists and is not a regular file.
std::string written_at(const std::string& path);
// Whether that is so now, for who has long work to do before it writes. Errors: kSystemError, naming `path`.
Result<void> check_writable(const std::string& path);

// Like write_file(), but fails if `path` exists and is not a regular file: a link, say, that somebody else may have put
// there is neither followed nor replaced. Errors: kSystemError, naming `path`.
Result<void> replace_file(const std::string& path, std::string_view bytes, mode_t mode = 0666);

// The whole file. A folder can be opened but not read, which makes streams throw. Errors: kSystemError, naming `path`.
Result<std::string> read_file(const std::string& path);
// The same for an open file; stops once it has at least `enough_bytes`.
Result<std::string> read_all(const std::string& path, const Fd& file, size_t enough_bytes = SIZE_MAX);

// The first line, without its newline, of a file such as those in /proc and /sys. "" if it cannot be read.
std::string first_line(const std::string& path);

// The names in a folder, sorted, except those that begin with a dot. None if there is no such folder.
std::vector<std::string> entries_of(const std::string& folder);

}  // namespace tutti
