#include "tensors.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace tutti::perf {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> model_folders() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  return {program / "../perf/models", program / "../share/tutti/models", TUTTI_PERF_INSTALLED_MODELS};
}

Status find_list(const std::string& name, std::string* path) {
  std::error_code ignored;
  *path = name;
  if (name.find('/') != std::string::npos || fs::is_regular_file(name, ignored)) return {};
  std::string searched;
  for (const fs::path& folder : model_folders()) {
    const fs::path candidate = folder / (name + ".txt");
    *path = candidate.string();
    if (fs::is_regular_file(candidate, ignored)) return {};
    searched += "\n  " + candidate.string();
  }
  return usage_error(text("--sizes-from %s: no such file here, and none of these:%s", name.c_str(), searched.c_str()));
}

// "name count", "count", or only a comment.
bool parse_line(std::string line, std::vector<Tensor>* tensors) {
  line.resize(std::min(line.size(), line.find('#')));
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  if (words.empty()) return true;
  const std::string& count = words.back();
  const bool digits = count.size() <= 15 && count.find_first_not_of("0123456789") == std::string::npos;
  if (words.size() > 2 || !digits) return false;
  tensors->push_back({words.size() == 2 ? words[0] : text("tensor%zu", tensors->size()), std::stoull(count)});
  return true;
}

}  // namespace

Status load_tensors(const std::string& name, std::vector<Tensor>* tensors) {
  std::string path;
  if (Status s = find_list(name, &path); !s) return s;
  std::ifstream in(path);
  if (!in) return usage_error(text("--sizes-from %s: %s", path.c_str(), strerror(errno)));
  tensors->clear();
  int line_number = 0;
  for (std::string line; std::getline(in, line);) {
    line_number++;
    if (parse_line(line, tensors)) continue;
    return usage_error(text("%s:%d: expected 'name count', found '%s'", path.c_str(), line_number, line.c_str()));
  }
  if (in.bad()) return usage_error(text("--sizes-from %s: cannot be read", path.c_str()));
  if (tensors->empty()) return usage_error(text("%s: has no tensors", path.c_str()));
  return {};
}

}  // namespace tutti::perf
