// Where tunings rest between communicators of one layout: in this process, and in a file for each layout. A file is
// replaced as a whole, so readers never see half of one. No failure of the file system is anybody's error. All
// functions from any thread.
#pragma once

#include <optional>
#include <string>

#include "plan/tuning.h"

namespace tutti {

// TUTTI_TUNE_CACHE, or tutti/ where the user's caches are; empty for no files.
std::string cache_directory();
// The file that a tuning for `layout` lies in.
std::string cache_file(const std::string& directory, const std::string& layout);

// `layout` names the machine, the library's version and all else that the times depend on, in one line. A file that
// cannot be read is as none; one that is damaged or not of this layout is warned of.
std::optional<Tuning> recall_tuning(const std::string& layout);
// What it has joins what is there.
void keep_tuning(const std::string& layout, const Tuning& tuning);

// What /proc/cpuinfo calls the CPUs.
std::string cpu_model();

}  // namespace tutti
