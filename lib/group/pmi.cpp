#include "group/pmi.h"

#include <algorithm>
#include <cstdlib>

#include "base/socket.h"
#include "group/bootstrap.h"

namespace tutti {
namespace {

constexpr size_t kMaxLineChars = 16384;

// The value of `name` in "cmd=x name=value other=value"; empty if it is not there.
std::string field(const std::string& line, const std::string& name) {
  const std::string padded = " " + line;
  const size_t at = padded.find(" " + name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 2;
  return padded.substr(begin, padded.find(' ', begin) - begin);
}

}  // namespace

Result<Pmi> Pmi::init(int fd, Deadline deadline) {
  Pmi pmi(fd, deadline);
  TUTTI_TRY(pmi.ask("init pmi_version=1 pmi_subversion=1", "response_to_init"));
  TUTTI_TRY_ASSIGN(const std::string maxes, pmi.ask("get_maxes", "maxes"));
  TUTTI_TRY_ASSIGN(const std::string name, pmi.ask("get_my_kvsname", "my_kvsname"));
  pmi.kvs_name_ = field(name, "kvsname");
  const long limit = strtol(field(maxes, "vallen_max").c_str(), nullptr, 10);
  constexpr long kIdChars = 2 + 2 * sizeof(UniqueId);  // the launchers in use take 815 (ParaStation's) or more
  if (limit <= kIdChars)
    return Error{Code::kRemoteError, format("PMI: the launcher has no room for the %ld characters of a unique id: %s",
                                            kIdChars, maxes.c_str())};
  pmi.most_chars_ = static_cast<size_t>(std::min((limit - 1) / 2 * 2, 1022L));  // whole bytes in hex, and a final zero
  return pmi;
}

Result<std::string> Pmi::put(const std::string& key, const std::string& value) {
  return ask("put kvsname=" + kvs_name_ + " key=" + key + " value=" + value.substr(0, most_chars_), "put_result");
}

Result<std::string> Pmi::get(const std::string& key) {
  TUTTI_TRY_ASSIGN(const std::string answer, ask("get kvsname=" + kvs_name_ + " key=" + key, "get_result"));
  return field(answer, "value");
}

Result<std::string> Pmi::ask(const std::string& command, const std::string& answer) {
  const std::string line = "cmd=" + command + "\n";
  const std::string doing = "PMI " + command.substr(0, command.find(' '));
  if (auto sent = send_all(fd_, line.data(), line.size(), deadline_); !sent)
    return Error{sent.error().code,
                 doing + ": " + sent.error().message +
                     " (was PMI_FD, the launcher's descriptor, closed by a wrapper around this program?)",
                 -1, sent.error().sys_errno};
  TUTTI_TRY_ASSIGN(const std::string got, read_line());
  const std::string rc = field(got, "rc");
  if (field(got, "cmd") == answer && (rc.empty() || rc == "0")) return got;
  return Error{Code::kRemoteError, doing + ": the launcher answered '" + got + "'"};
}

// Byte by byte: what follows the newline may be for somebody else.
Result<std::string> Pmi::read_line() {
  std::string line;
  for (char c = 0; line.size() < kMaxLineChars; line += c) {
    if (auto got = recv_all(fd_, &c, 1, deadline_); !got) {
      const bool late = got.error().code == Code::kTimeout;
      return Error{got.error().code, late ? "PMI: the launcher did not answer in time: did every rank get here?"
                                          : "PMI: " + got.error().message};
    }
    if (c == '\n') return line;
  }
  return Error{Code::kRemoteError, "PMI: the launcher sent a line without end"};
}

}  // namespace tutti
