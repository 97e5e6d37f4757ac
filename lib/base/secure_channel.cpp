#include "base/secure_channel.h"

#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tutti {
namespace {

constexpr size_t kHeadBytes = sizeof(uint32_t), kProofBytes = 16, kAroundBytes = kHeadBytes + kProofBytes;
static_assert(kProofBytes == AesGcm::kProofBytes && kProofBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);
constexpr size_t kJoinBytes = 1024;  // copying this much costs less than another record
// The receive buffer's first size: one read into it brings many small records.
constexpr size_t kStageBytes = 8192;
// Large records for each system call. All-reduces of 16 MiB by 2 ranks on loopback take 5.1 ms; with one for each, 6.8.
constexpr size_t kRecordsAtOnce = 4, kTextBytesAtOnce = kRecordsAtOnce * kMostTextBytes;

}  // namespace

uint8_t ciphers_here() {
  return static_cast<uint8_t>(Cipher::kChaCha20) | (AesGcm::is_supported() ? static_cast<uint8_t>(Cipher::kAes256) : 0);
}

RecordKey::RecordKey(Cipher cipher, const Secret& key, uint64_t renew_bytes)
    : cipher_(cipher), key_(key), renew_bytes_(renew_bytes) {
  take_key();
}

RecordKey::~RecordKey() {
  sodium_memzero(key_.data(), key_.size());
}

void RecordKey::take_key() {
  static_assert(std::tuple_size_v<Secret> == AesGcm::kKeyBytes && std::tuple_size_v<Nonce> == AesGcm::kNonceBytes);
  if (cipher_ == Cipher::kAes256) aes_.take_key(key_.data());
}

RecordKey::Nonce RecordKey::nonce() const {
  Nonce bytes{};
  memcpy(bytes.data() + 4, &records_, sizeof records_);
  return bytes;
}

void RecordKey::count(size_t text_bytes) {
  records_++;
  text_bytes_ += text_bytes;
  if (text_bytes_ < renew_bytes_) return;
  static constexpr uint8_t kNext[] = "tutti next key";
  Secret next;
  crypto_generichash(next.data(), next.size(), kNext, sizeof kNext, key_.data(), key_.size());
  key_ = next;
  sodium_memzero(next.data(), next.size());
  text_bytes_ = 0;
  take_key();
}

void RecordKey::seal(const void* from, size_t text_bytes, uint8_t* record) {
  const auto length = static_cast<uint32_t>(text_bytes);
  memcpy(record, &length, sizeof length);
  const auto* const text = static_cast<const uint8_t*>(from);
  uint8_t* const sealed = record + kHeadBytes;
  if (cipher_ == Cipher::kAes256)
    aes_.seal(text, text_bytes, {record, kHeadBytes}, nonce().data(), sealed);
  else
    crypto_aead_chacha20poly1305_ietf_encrypt(sealed, nullptr, text, text_bytes, record, kHeadBytes, nullptr,
                                              nonce().data(), key_.data());
  count(text_bytes);
}

bool RecordKey::open(const uint8_t* record, size_t text_bytes, uint8_t* text) {
  const uint8_t* const sealed = record + kHeadBytes;
  const bool is_right =
      cipher_ == Cipher::kAes256
          ? aes_.open(sealed, text_bytes, {record, kHeadBytes}, nonce().data(), text)
          : crypto_aead_chacha20poly1305_ietf_decrypt(text, nullptr, nullptr, sealed, text_bytes + kProofBytes, record,
                                                      kHeadBytes, nonce().data(), key_.data()) == 0;
  if (!is_right) return false;
  count(text_bytes);
  return true;
}

void RecordSender::seal_record(const void* text, size_t bytes) {
  if (records_.size() < end_ + bytes + kAroundBytes) records_.resize(end_ + bytes + kAroundBytes);
  key_.seal(text, bytes, records_.data() + end_);
  end_ += bytes + kAroundBytes;
  text_bytes_ += bytes;
}

// Small parts are joined in one record; otherwise each part becomes one or several, kTextBytesAtOnce in all at most.
void RecordSender::seal(std::initializer_list<iovec> parts) {
  begin_ = end_ = text_bytes_ = 0;
  size_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  if (bytes > kJoinBytes) {
    for (const iovec& part : parts)
      for (size_t at = 0; at < part.iov_len && text_bytes_ < kTextBytesAtOnce; at += kMostTextBytes)
        seal_record(static_cast<const uint8_t*>(part.iov_base) + at, std::min(part.iov_len - at, kMostTextBytes));
    return;
  }
  std::array<uint8_t, kJoinBytes> text;
  size_t at = 0;
  for (const iovec& part : parts) {
    if (part.iov_len > 0) memcpy(text.data() + at, part.iov_base, part.iov_len);
    at += part.iov_len;
  }
  seal_record(text.data(), bytes);
}

ssize_t RecordSender::send(int fd, std::initializer_list<iovec> parts) {
  if (begin_ == end_) seal(parts);
  while (begin_ < end_) {
    const ssize_t n = ::send(fd, records_.data() + begin_, end_ - begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    begin_ += static_cast<size_t>(n);
    wire_bytes_ += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(text_bytes_);
}

RecordReceiver::RecordReceiver(Cipher cipher, const Secret& key, uint64_t renew_bytes)
    : key_(cipher, key, renew_bytes), records_(kStageBytes) {}

RecordReceiver::~RecordReceiver() {
  sodium_memzero(records_.data(), records_.size());
}

// 0: its length has not arrived yet.
size_t RecordReceiver::next_record_bytes() const {
  if (end_ - begin_ < kHeadBytes) return 0;
  uint32_t text_bytes;
  memcpy(&text_bytes, records_.data() + begin_, sizeof text_bytes);
  return text_bytes + kAroundBytes;
}

// Decrypts the next record to `to`, or in place if it does not fit there.
RecordReceiver::Opened RecordReceiver::open_record(uint8_t* to, size_t room, size_t* got) {
  const size_t record_bytes = next_record_bytes();
  if (record_bytes == 0) return Opened::kNothing;
  const size_t bytes = record_bytes - kAroundBytes;
  if (bytes == 0 || bytes > kMostTextBytes) return Opened::kWrong;
  if (end_ - begin_ < record_bytes) return Opened::kNothing;
  uint8_t* const record = records_.data() + begin_;
  const bool fits = bytes <= room;
  if (!key_.open(record, bytes, fits ? to : record + kHeadBytes)) return Opened::kWrong;
  if (fits) {
    *got += bytes;
  } else {
    text_begin_ = begin_ + kHeadBytes;
    text_end_ = text_begin_ + bytes;
  }
  begin_ += record_bytes;
  return Opened::kRecord;
}

// False if nothing arrived.
bool RecordReceiver::read_more(int fd) {
  if (std::exchange(drained_, false)) {
    errno = EAGAIN;
    return false;
  }
  const size_t have = end_ - begin_, needs = next_record_bytes();
  if (begin_ > 0) memmove(records_.data(), records_.data() + begin_, have);
  begin_ = 0;
  end_ = have;
  // Room for the next record's length too: then full records stay where they are read, and nothing is moved.
  if (records_.size() < needs + kHeadBytes) records_.resize(kRecordsAtOnce * needs + kHeadBytes);
  const size_t wanted = records_.size() - have;
  ssize_t n;
  while ((n = ::recv(fd, records_.data() + end_, wanted, MSG_DONTWAIT)) < 0 && errno == EINTR) continue;
  if (n == 0) errno = 0;
  if (n <= 0) return false;
  end_ += static_cast<size_t>(n);
  drained_ = static_cast<size_t>(n) < wanted;
  return true;
}

ssize_t RecordReceiver::recv(int fd, void* to, size_t room) {
  auto* const at = static_cast<uint8_t*>(to);
  size_t got = 0;
  drained_ = false;
  int ended_by = EAGAIN;
  while (got < room && broken_by_ == 0) {
    if (text_begin_ < text_end_) {
      const size_t some = std::min(text_end_ - text_begin_, room - got);
      memcpy(at + got, records_.data() + text_begin_, some);
      text_begin_ += some;
      got += some;
      continue;
    }
    const Opened opened = open_record(at + got, room - got, &got);
    if (opened == Opened::kWrong) broken_by_ = EBADMSG;
    if (opened != Opened::kNothing || read_more(fd)) continue;
    ended_by = errno;
    if (ended_by != 0 && ended_by != EAGAIN && ended_by != EWOULDBLOCK) broken_by_ = ended_by;
    break;
  }
  if (got > 0) return static_cast<ssize_t>(got);
  errno = broken_by_ != 0 ? broken_by_ : ended_by;
  return errno == 0 ? 0 : -1;
}

ssize_t send_some(int fd, SecureChannel* channel, const void* data, size_t bytes) {
  if (channel == nullptr) return ::send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  return channel->send(fd, {{const_cast<void*>(data), bytes}});
}

ssize_t recv_some(int fd, SecureChannel* channel, void* to, size_t room) {
  return channel == nullptr ? ::recv(fd, to, room, MSG_DONTWAIT) : channel->recv(fd, to, room);
}

Moved send_rest(int fd, SecureChannel* channel, const void* data, size_t bytes, size_t* done) {
  const auto* const begin = static_cast<const char*>(data);
  return move_rest(bytes, done, [&](size_t at, size_t left) { return send_some(fd, channel, begin + at, left); });
}

Moved recv_rest(int fd, SecureChannel* channel, void* to, size_t bytes, size_t* done) {
  auto* const begin = static_cast<char*>(to);
  return move_rest(bytes, done, [&](size_t at, size_t left) { return recv_some(fd, channel, begin + at, left); });
}

std::string why_broken(int sys_errno) {
  if (sys_errno != EBADMSG) return strerror(sys_errno);
  return "the data received is not what the other side sent: someone in between changed, dropped, repeated or "
         "inserted bytes (TUTTI_ENCRYPT)";
}

}  // namespace tutti
