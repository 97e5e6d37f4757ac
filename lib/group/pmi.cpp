#include "group/pmi.h"

#include <algorithm>
#include <cstdlib>

#include "base/socket.h"

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
  if (limit < 2) return Error{Code::kRemoteError, "PMI: the launcher gave no valid vallen_max: " + maxes};
  pmi.piece_chars_ = static_cast<size_t>(std::clamp(limit - 2, 1L, 1022L));
  return pmi;
}

std::string Pmi::piece_key(const std::string& key, size_t piece) const {
  return "kvsname=" + kvs_name_ + " key=" + key + "-" + std::to_string(piece);
}

// Every piece starts with '+' if another one follows, else with '.'.
Result<void> Pmi::put(const std::string& key, const std::string& value) {
  for (size_t at = 0, piece = 0;; piece++) {
    const std::string part = value.substr(at, piece_chars_);
    at += part.size();
    const bool last = at == value.size();
    TUTTI_TRY(ask("put " + piece_key(key, piece) + " value=" + (last ? "." : "+") + part, "put_result"));
    if (last) return {};
  }
}

Result<std::string> Pmi::get(const std::string& key) {
  std::string value;
  for (size_t piece = 0; value.size() < kMaxLineChars; piece++) {
    TUTTI_TRY_ASSIGN(const std::string answer, ask("get " + piece_key(key, piece), "get_result"));
    const std::string part = field(answer, "value");
    if (part.empty()) break;
    value += part.substr(1);
    if (part[0] == '.') return value;
  }
  return Error{Code::kRemoteError, "PMI: the launcher's value of " + key + " is damaged"};
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
