// What goes through a connection that is encrypted: records.
//
//   u32: bytes of text | the text, encrypted | 16 bytes that prove it and its length
//
// Each direction has a key of its own and counts its records in their nonces. So one that was changed, left out, sent
// again, moved or put in does not fit where it comes. After kRenewBytes both sides derive the direction's next key and
// forget the last one. The handshake (handshake.h) makes the first.
//
// One thread may send while another one receives; nothing else may be done at the same time. The descriptor stays the
// caller's.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/aes_gcm.h"

namespace tutti {

enum class Cipher : uint8_t { kNone = 0, kChaCha20 = 1, kAes256 = 2 };  // ChaCha20-Poly1305 and AES-256-GCM
// Those that this machine is fast at, as bits: each one's is its value. ChaCha20 is always there.
uint8_t ciphers_here();

using Secret = std::array<uint8_t, 32>;

inline constexpr size_t kMostTextBytes = 32 << 10;  // of a record
inline constexpr uint64_t kRenewBytes = uint64_t{16} << 30;

// One direction's key, and how many records it has sealed or opened.
class RecordKey {
 public:
  RecordKey(Cipher cipher, const Secret& key, uint64_t renew_bytes);
  ~RecordKey();
  RecordKey(const RecordKey&) = delete;
  RecordKey& operator=(const RecordKey&) = delete;
  void seal(const void* text, size_t text_bytes, uint8_t* record);
  bool open(const uint8_t* record, size_t text_bytes, uint8_t* text);

 private:
  using Nonce = std::array<uint8_t, 12>;
  void take_key();
  Nonce nonce() const;
  void count(size_t text_bytes);

  AesGcm aes_;  // with its key, if it is the cipher
  Cipher cipher_;
  Secret key_;
  uint64_t records_ = 0;     // in all
  uint64_t text_bytes_ = 0;  // since the last key
  uint64_t renew_bytes_;
};

class RecordSender {
 public:
  RecordSender(Cipher cipher, const Secret& key, uint64_t renew_bytes) : key_(cipher, key, renew_bytes) {}
  // As send(2) with MSG_DONTWAIT. What is counted is text: of `parts` as much as the kernel has taken whole records of.
  // After EAGAIN the next call begins with the same bytes, for they may be on their way.
  ssize_t send(int fd, std::initializer_list<iovec> parts);
  uint64_t wire_bytes() const { return wire_bytes_; }  // that the kernel has taken, encrypted

 private:
  void seal(std::initializer_list<iovec> parts);
  void seal_record(const void* text, size_t bytes);

  RecordKey key_;
  std::vector<uint8_t> records_;
  size_t begin_ = 0, end_ = 0, text_bytes_ = 0;  // of what the kernel is yet to take
  uint64_t wire_bytes_ = 0;
};

class RecordReceiver {
 public:
  RecordReceiver(Cipher cipher, const Secret& key, uint64_t renew_bytes);
  ~RecordReceiver();
  RecordReceiver(const RecordReceiver&) = delete;
  RecordReceiver& operator=(const RecordReceiver&) = delete;
  // As recv(2) with MSG_DONTWAIT. Errno is EBADMSG, for ever, when something came that the other side has not sent like
  // that. Less than there is room for means that the kernel has no more.
  ssize_t recv(int fd, void* to, size_t room);
  // Received from the kernel, and not taken by recv.
  bool has_rest() const { return text_begin_ < text_end_ || begin_ < end_; }

 private:
  enum class Opened { kNothing, kRecord, kWrong };

  Opened open_record(uint8_t* to, size_t room, size_t* got);
  bool read_more(int fd);
  size_t next_record_bytes() const;

  RecordKey key_;
  std::vector<uint8_t> records_;
  size_t begin_ = 0, end_ = 0;            // of what has come
  size_t text_begin_ = 0, text_end_ = 0;  // of a record that was opened where it lies, what is yet to be taken
  bool drained_ = false;                  // the last read got less than it asked for
  int broken_by_ = 0;                     // errno
};

// Both directions of a connection.
struct SecureChannel : RecordSender, RecordReceiver {
  SecureChannel(Cipher cipher, const Secret& sends_by, const Secret& receives_by, uint64_t renew_bytes = kRenewBytes)
      : RecordSender(cipher, sends_by, renew_bytes), RecordReceiver(cipher, receives_by, renew_bytes) {}
};

// A connection that may be encrypted; null: it is not.
ssize_t send_some(int fd, SecureChannel* channel, const void* data, size_t bytes);
ssize_t recv_some(int fd, SecureChannel* channel, void* to, size_t room);
// What is left of so many bytes, of which *done have gone. kSome: no more of them goes now; kBroken: see errno, which
// is 0 where the other side has closed.
enum class Moved { kAll, kSome, kBroken };
Moved send_rest(int fd, SecureChannel* channel, const void* data, size_t bytes, size_t* done);
Moved recv_rest(int fd, SecureChannel* channel, void* to, size_t bytes, size_t* done);
// As strerror, for an errno of these.
std::string why_broken(int sys_errno);

}  // namespace tutti
