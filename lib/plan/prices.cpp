#include "plan/prices.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>

#include "base/env.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/limits.h"

namespace tutti {
namespace {

constexpr double kLeastNs = 1e-6, kMostNs = 1e9;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// In the C locale, whatever the program has set.
bool read_price(std::string_view text, double* price) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= kLeastNs && value <= kMostNs))
    return false;
  *price = value;
  return true;
}

Result<void> read_line(std::string_view line, std::span<const NamedPrice> names, PriceList* list) {
  const size_t equals = line.find('=');
  const std::string name(trimmed(line.substr(0, equals)));
  if (equals != line.npos && name == "network") {
    list->network_file = trimmed(line.substr(equals + 1));
    if (list->network_file.empty()) return Error{Code::kInvalidUsage, "it names no file: name one, or remove the line"};
    return {};
  }
  const auto found = std::find_if(names.begin(), names.end(), [&](const NamedPrice& p) { return p.name == name; });
  if (equals == line.npos || found == names.end())
    return Error{Code::kInvalidUsage,
                 "there is no price '" + name + "': give lines such as 'shm.hop = 150' or 'network = FILE'"};
  const std::string value(trimmed(line.substr(equals + 1)));
  if (!read_price(value, found->value))
    return Error{Code::kInvalidUsage, format("%s = %s is not valid: give nanoseconds from %g to %g", name.c_str(),
                                             value.c_str(), kLeastNs, kMostNs)};
  list->given.push_back(name);
  return {};
}

Error unreadable(const std::string& path, const std::string& why, int sys_errno = 0) {
  return {Code::kInvalidUsage,
          format("the tuning file %s cannot be read: %s; fix that, or set TUTTI_TUNE_FILE to "
                 "another file or to /dev/null",
                 path.c_str(), why.c_str()),
          -1, sys_errno};
}

// A file found without being named, in a folder where others may write, must belong to this user or to root.
Result<void> check_found(const std::string& path, int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return unreadable(path, strerror(errno), errno);
  if (info.st_uid == geteuid() || info.st_uid == 0) return {};
  return unreadable(path, format("it belongs to user %u, not to this one, %u", info.st_uid, geteuid()));
}

Result<std::string> read_file(const std::string& path, bool is_found) {
  constexpr size_t kMostBytes = 1 << 16;
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | (is_found ? O_NOFOLLOW : 0)));
  if (!file && errno == ELOOP) return unreadable(path, "it is a symbolic link", ELOOP);
  if (!file && !limit_remedy(errno).empty()) return system_error("opening the tuning file " + path, errno);
  if (!file) return unreadable(path, strerror(errno), errno);
  if (is_found) TUTTI_TRY(check_found(path, file.get()));
  auto text = read_all(path, file, kMostBytes + 1);
  if (!text) return unreadable(path, strerror(text.error().sys_errno), text.error().sys_errno);
  if (text.value().size() <= kMostBytes) return text;
  return Error{Code::kInvalidUsage,
               "the tuning file " + path +
                   " is too long for one: remove it, or set TUTTI_TUNE_FILE=/dev/null, and write a new one with "
                   "tutti-tune"};
}

}  // namespace

// Between the prices that tutti-tune fits to what tests/launch/regret.sh measured on virtual machines with two Zen 5
// CPUs and with two Sapphire Rapids, twice as fast; hosts were network namespaces. Nothing there tells about RDMA, CPU
// time for bytes between hosts (the network was slower), or hops between hosts whose ranks have their own CPUs: those
// are typical figures.
Prices built_in_prices() {
  return {.shm = {60, 420, 90, 0.055},
          .loopback = {900, 1600, 1500, 0.15},
          .network = {15000, 1900, 3400, 0.1},
          .rdma = {2000, 2000, 300, 0.02},
          .summed_byte = 0.019,
          .far_byte = 0.029};
}

// FNV-1a.
uint64_t fingerprint(const Prices& prices, std::string_view network_text) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](uint64_t word) { hash = (hash ^ word) * 0x100000001b3; };
  Prices copy = prices;
  for (const NamedPrice& price : by_name(copy)) add(std::bit_cast<uint64_t>(*price.value));
  for (const char byte : network_text) add(static_cast<unsigned char>(byte));
  return hash;
}

std::vector<NamedPrice> by_name(Prices& prices) {
  std::vector<NamedPrice> names;
  const auto add = [&](const std::string& name, const std::string& where, Medium& medium) {
    names.push_back({name + ".hop", "until a message " + where + " has been noticed", &medium.hop});
    names.push_back({name + ".turn", "the same for each rank that shares a CPU", &medium.turn});
    names.push_back({name + ".message", "CPU time to send or receive one", &medium.message});
    names.push_back({name + ".byte", "CPU time to send or receive one", &medium.byte});
  };
  add("shm", "in shared memory", prices.shm);
  add("loopback", "over TCP within a host", prices.loopback);
  add("network", "over TCP between hosts", prices.network);
  add("rdma", "over RDMA between hosts", prices.rdma);
  names.push_back({"sum.byte", "for each byte read to be added up", &prices.summed_byte});
  names.push_back({"far.byte", "extra, for operations that do not fit the caches", &prices.far_byte});
  return names;
}

Result<PriceList> prices_from_text(std::string_view text, const std::string& file) {
  PriceList list{built_in_prices(), file, {}};
  const std::vector<NamedPrice> names = by_name(list.prices);
  int number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = trimmed(text.substr(at, end - at).substr(0, text.substr(at, end - at).find('#')));
    at = end + 1;
    number++;
    if (line.empty()) continue;
    auto read = read_line(line, names, &list);
    if (read) continue;
    read.error().message =
        format("the tuning file %s, line %d: %s", file.c_str(), number, read.error().message.c_str());
    return std::move(read).error();
  }
  return list;
}

std::string to_text(const Prices& prices) {
  Prices copy = prices;
  std::string text;
  for (const NamedPrice& price : by_name(copy)) {
    char value[32] = "";  // with as many digits as reading back the same value takes
    std::to_chars(value, value + sizeof value - 1, *price.value);
    text += format("%s = %s  # ns: %s\n", price.name.c_str(), value, price.help.c_str());
  }
  return text;
}

std::string users_configuration() {
  const char *config = secure_getenv("XDG_CONFIG_HOME"), *home = secure_getenv("HOME");
  if (config != nullptr && *config == '/') return config;
  return home != nullptr && *home == '/' ? std::string(home) + "/.config" : "";
}

Result<PriceList> find_prices() {
  std::string path = env_string("TUTTI_TUNE_FILE");
  const std::string folder = users_configuration(), users = folder.empty() ? "" : folder + "/tutti/tuning";
  const bool is_found = path.empty();
  for (const std::string& file : {users, std::string("/etc/tutti/tuning")})
    if (path.empty() && !file.empty() && access(file.c_str(), F_OK) == 0) path = file;
  if (path.empty()) return PriceList{built_in_prices(), "", {}};
  TUTTI_TRY_ASSIGN(const std::string text, read_file(path, is_found && path == users));
  TUTTI_TRY_ASSIGN(PriceList list, prices_from_text(text, path));
  if (list.network_file.empty()) return list;
  const auto file = std::filesystem::path(path).parent_path() / list.network_file;
  auto network = read_cluster(file.string(), &list.network_text);
  if (!network) return unreadable(path, network.error().message);
  list.network = std::move(network).value();
  return list;
}

}  // namespace tutti
