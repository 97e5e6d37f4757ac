#include "group/line.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace tutti {
namespace {

struct LineHeader {
  uint32_t type;
  uint32_t bytes;
};

// Of a peer that does not read: more is thrown away.
constexpr size_t kMostUnsentBytes = size_t{64} << 20;

}  // namespace

bool Line::send(uint32_t type, std::string_view bytes) {
  if (unsent_.size() > kMostUnsentBytes) {
    if (!std::exchange(throws_away_, true))
      log(LogLevel::kWarn,
          "rank %d has not read its control connection for so long that %zu MiB are queued for it: it is sent nothing "
          "more",
          peer, unsent_.size() >> 20);
    return false;
  }
  const LineHeader header{type, static_cast<uint32_t>(bytes.size())};
  unsent_.append(reinterpret_cast<const char*>(&header), sizeof header).append(bytes);
  flush();
  return true;
}

// A peer that is gone needs nothing: the next receive() shows it.
void Line::flush() {
  size_t sent = 0;
  while (sent < unsent_.size()) {
    const char* const data = unsent_.data() + sent;
    const size_t left = unsent_.size() - sent;
    const ssize_t n = pipe_ ? pipe_->write(data, left) : send_some(fd.get(), channel_.get(), data, left);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) sent = unsent_.size();
    if (n < 0) break;
    sent += static_cast<size_t>(n);
  }
  unsent_.erase(0, sent);
}

Line::Status Line::receive() {
  char bytes[16384];
  const ssize_t n = pipe_ ? pipe_->read(bytes, sizeof bytes) : recv_some(fd.get(), channel_.get(), bytes, sizeof bytes);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Status::kQuiet;
  broken_by = n < 0 ? errno : 0;
  if (n <= 0) return Status::kBroken;
  received_.append(bytes, static_cast<size_t>(n));
  return Status::kFrame;
}

Line::Status Line::next(Frame* frame) {
  LineHeader header;
  if (received_.size() < sizeof header) return Status::kQuiet;
  memcpy(&header, received_.data(), sizeof header);
  if (header.bytes > most_bytes_) return Status::kNonsense;
  if (received_.size() < sizeof header + header.bytes) return Status::kQuiet;
  frame->type = header.type;
  frame->bytes = received_.substr(sizeof header, header.bytes);
  received_.erase(0, sizeof header + header.bytes);
  return Status::kFrame;
}

}  // namespace tutti
