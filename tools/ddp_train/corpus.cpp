#include "corpus.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace tutti::train {
namespace {

constexpr const char* kLicences = "/usr/share/common-licenses";

Status append_file(const std::string& path, std::string* out) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "rb"), fclose);
  char piece[1 << 16];
  for (size_t n; file && (n = fread(piece, 1, sizeof piece, file.get())) > 0;) out->append(piece, n);
  if (!file || ferror(file.get())) return Error{path + ": " + strerror(errno) + "; give --data a text file"};
  return {};
}

// The licence texts, each once, in the order of their names.
Status read_licences(std::string* out) {
  std::error_code error;
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(kLicences, error))
    if (entry.is_regular_file() && !entry.is_symlink()) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths)
    if (Status s = append_file(path, out); !s) return s;
  return {};
}

std::string sums() {
  std::string out;
  uint32_t state = 1;
  const auto next = [&] {  // Knuth's constants for a linear congruential generator
    state = state * 1664525 + 1013904223;
    return (state >> 16) % 100;
  };
  while (out.size() < 200000) {
    const uint32_t a = next(), b = next();
    out += std::to_string(a) + "+" + std::to_string(b) + "=" + std::to_string(a + b) + "\n";
  }
  return out;
}

}  // namespace

Status load_corpus(const std::string& path, Corpus* corpus) {
  std::string content;
  corpus->source = path.empty() ? kLicences : path;
  if (Status s = path.empty() ? read_licences(&content) : append_file(path, &content); !s) return s;
  if (path.empty() && content.empty()) {
    corpus->source = "generated sums";
    content = sums();
  }
  bool present[256] = {};
  for (const char c : content) present[static_cast<uint8_t>(c)] = true;
  uint8_t number_of[256] = {};
  for (size_t c = 0; c < 256; c++) {
    if (!present[c]) continue;
    number_of[c] = static_cast<uint8_t>(corpus->alphabet.size());
    corpus->alphabet += static_cast<char>(c);
  }
  for (const char c : content) corpus->symbols.push_back(number_of[static_cast<uint8_t>(c)]);
  return {};
}

}  // namespace tutti::train
