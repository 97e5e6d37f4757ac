#include "group/tcp_store.h"

#include <poll.h>

#include <algorithm>
#include <bit>

#include "base/bytes.h"
#include "base/socket.h"

namespace tutti {
namespace {

enum Query : uint8_t { kValidate = 0, kSet = 1, kGet = 3, kWait = 6 };
constexpr uint32_t kValidationMagic = 0x3C85F7CE;
constexpr uint64_t kMaxValueBytes = 1 << 20;  // far more than a unique id: anything longer is not ours
constexpr double kAttemptSeconds = 3;

static_assert(std::endian::native == std::endian::little, "this protocol is written as the machine's own bytes");

std::string counted(const std::string& text) {
  return ByteWriter().put(uint64_t{text.size()}).take() + text;
}

Result<Fd> connect_once(const Address& address, Deadline deadline) {
  TUTTI_TRY_ASSIGN(Fd fd, connect_start(address));
  for (const Deadline until = Deadline::after_seconds(std::min(kAttemptSeconds, deadline.left_ms(INT32_MAX) / 1e3));;) {
    pollfd writable{fd.get(), POLLOUT, 0};
    ::poll(&writable, 1, until.left_ms(100));
    int error = 0;
    const Code code = connect_finished(fd.get(), &error);
    if (code == Code::kSuccess) return fd;
    if (code != Code::kInProgress) return system_error("connect to " + address.to_string(), error);
    if (until.passed()) return Error{Code::kTimeout, "connect to " + address.to_string() + ": no answer"};
  }
}

}  // namespace

Result<TcpStore> TcpStore::connect(const std::string& host, uint16_t port, Deadline deadline) {
  std::string why;
  do {
    TUTTI_TRY_ASSIGN(const std::vector<Address> addresses, resolve(host, port, deadline));  // they may change meanwhile
    why.clear();
    for (const Address& address : addresses) {
      auto fd = connect_once(address, deadline);
      if (!fd) {
        why += "; " + fd.error().message;
        continue;
      }
      TcpStore store(std::move(fd).value(), address.to_string(), deadline);
      const std::string hello = ByteWriter().put(kValidate).put(kValidationMagic).take();
      if (auto sent = send_all(store.fd_.get(), hello.data(), hello.size(), deadline); !sent)
        return store.explain(sent.error(), "greeting it");
      return store;
    }
    ::poll(nullptr, 0, deadline.left_ms(100));
  } while (!deadline.passed());
  return Error{Code::kTimeout,
               format("the launcher's store at %s:%u cannot be reached%s", host.c_str(), port, why.c_str())};
}

Error TcpStore::explain(Error error, const std::string& doing) const {
  error.message = "the launcher's store at " + where_ + ", " + doing + ": " + error.message;
  if (error.code == Code::kTimeout) error.message += " (did rank 0 get here?)";
  return error;
}

Result<void> TcpStore::set(const std::string& key, const std::string& value) {
  const std::string query = ByteWriter().put(kSet).take() + counted("/" + key) + counted(value);
  if (auto sent = send_all(fd_.get(), query.data(), query.size(), deadline_); !sent)
    return explain(sent.error(), "setting " + key);
  return {};
}

Result<std::string> TcpStore::get(const std::string& key) {
  const std::string query = ByteWriter().put(kWait).put(uint64_t{1}).take() + counted("/" + key);
  uint8_t found = 1;
  uint64_t bytes = 0;
  const std::string doing = "waiting for " + key;
  if (auto r = send_all(fd_.get(), query.data(), query.size(), deadline_); !r) return explain(r.error(), doing);
  if (auto r = recv_all(fd_.get(), &found, 1, deadline_); !r) return explain(r.error(), doing);
  if (found != 0) return explain({Code::kRemoteError, "the wait was cancelled"}, doing);
  const std::string fetch = ByteWriter().put(kGet).take() + counted("/" + key);
  if (auto r = send_all(fd_.get(), fetch.data(), fetch.size(), deadline_); !r) return explain(r.error(), doing);
  if (auto r = recv_all(fd_.get(), &bytes, sizeof bytes, deadline_); !r) return explain(r.error(), doing);
  if (bytes > kMaxValueBytes) return explain({Code::kRemoteError, "the answer is not a value that Tutti wrote"}, doing);
  std::string value(bytes, '\0');
  if (auto r = recv_all(fd_.get(), value.data(), bytes, deadline_); !r) return explain(r.error(), doing);
  return value;
}

}  // namespace tutti
