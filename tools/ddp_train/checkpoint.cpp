#include "checkpoint.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

namespace tutti::train {
namespace {

constexpr char kMagic[8] = {'t', 'u', 't', 't', 'i', 'c', 'k', '1'};

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

Status failed(const std::string& path, const char* what) {
  return Error{path + ": " + what + ": " + strerror(errno)};
}

size_t bytes_of(const Matrix& matrix) {
  return static_cast<size_t>(matrix.size()) * sizeof(float);
}

uint64_t hash(uint64_t before, const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; i++) before = (before ^ at[i]) * 0x100000001b3;  // FNV-1a
  return before;
}

// All that is hashed, in the order of the file.
template <class Visit>
bool visit_all(const Progress& progress, const std::vector<Weight>& weights, Visit&& visit) {
  bool good = visit(&progress, sizeof progress);
  for (const Weight& w : weights)
    good = good && visit(w.value.data(), bytes_of(w.value)) && visit(w.momentum.data(), bytes_of(w.momentum));
  return good;
}

uint64_t checksum(const Progress& progress, const std::vector<Weight>& weights) {
  uint64_t sum = 0xcbf29ce484222325;
  visit_all(progress, weights, [&](const void* data, size_t bytes) {
    sum = hash(sum, data, bytes);
    return true;
  });
  return sum;
}

uint64_t shape_hash(const std::vector<Weight>& weights) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const Weight& w : weights) {
    const int64_t shape[] = {w.value.rows(), w.value.cols()};
    sum = hash(hash(sum, w.name.data(), w.name.size()), shape, sizeof shape);
  }
  return sum;
}

struct Header {
  char magic[8];
  uint64_t shape, checksum;
};

}  // namespace

std::string written_first(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  const bool replaces = kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found;
  return replaces ? path + ".new" : path;
}

Status save_checkpoint(const std::string& path, const Progress& progress, const std::vector<Weight>& weights) {
  const std::string fresh = written_first(path);
  const bool replaces = fresh != path;
  File file(fopen(fresh.c_str(), "wb"), fclose);
  if (!file) return failed(fresh, "cannot be written");
  Header header = {{}, shape_hash(weights), checksum(progress, weights)};
  memcpy(header.magic, kMagic, sizeof kMagic);
  const auto write = [&](const void* data, size_t bytes) { return fwrite(data, 1, bytes, file.get()) == bytes; };
  const bool written = write(&header, sizeof header) && visit_all(progress, weights, write) &&
                       fflush(file.get()) == 0 && (!replaces || fsync(fileno(file.get())) == 0);
  if (!written || fclose(file.release()) != 0) {
    const Status why = failed(fresh, "cannot be written");
    if (replaces) unlink(fresh.c_str());
    return why;
  }
  if (replaces && rename(fresh.c_str(), path.c_str()) != 0) return failed(path, "cannot be replaced");
  return {};
}

Status load_checkpoint(const std::string& path, Progress* progress, std::vector<Weight>* weights, bool* found) {
  File file(fopen(path.c_str(), "rb"), fclose);
  *found = file != nullptr;
  if (!file) return errno == ENOENT ? Status() : failed(path, "cannot be read");
  Header header;
  const auto read = [&](void* data, size_t bytes) { return fread(data, 1, bytes, file.get()) == bytes; };
  if (!read(&header, sizeof header) || memcmp(header.magic, kMagic, sizeof kMagic) != 0)
    return Error{path + " is not a checkpoint of ddp_train"};
  if (header.shape != shape_hash(*weights))
    return Error{path + " belongs to another model; give the options that it was trained with"};
  bool complete = read(progress, sizeof *progress);
  for (Weight& w : *weights)
    complete = complete && read(w.value.data(), bytes_of(w.value)) && read(w.momentum.data(), bytes_of(w.momentum));
  if (!complete || header.checksum != checksum(*progress, *weights))
    return Error{path + " is damaged: its checksum does not match its content"};
  return {};
}

}  // namespace tutti::train
