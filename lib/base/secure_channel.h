// An encrypted connection carries records:
//
//   u32: bytes of text | the text, encrypted | 16 bytes that authenticate it and its length
//
// Each direction has its own key and counts its records in their nonces, so a record that was changed, dropped,
// replayed, reordered or inserted fails to open. After kRenewBytes both sides derive the direction's next key and erase
// the old one. The handshake (handshake.h) makes the first.
//
// One thread may send while another receives; no other concurrent use. The caller keeps ownership of the descriptor.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/aes_gcm.h"

namespace tutti {

enum class Cipher : uint8_t { kNone = 0, kChaCha20 = 1, kAes256 = 2 };  // ChaCha20-Poly1305 and AES-256-GCM
// The ciphers that this machine runs fast, as a bit mask of their values. ChaCha20 is always included.
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

  AesGcm aes_;  // holds the key if the cipher is AES
  Cipher cipher_;
  Secret key_;
  uint64_t records_ = 0;     // in total, over all keys
  uint64_t text_bytes_ = 0;  // since the key was renewed
  uint64_t renew_bytes_;
};

class RecordSender {
 public:
  RecordSender(Cipher cipher, const Secret& key, uint64_t renew_bytes) : key_(cipher, key, renew_bytes) {}
  // Like send(2) with MSG_DONTWAIT. Counts text: the bytes of `parts` whose whole records the kernel has taken. After
  // EAGAIN the next call must begin with the same bytes, because part of their record may have been sent.
  ssize_t send(int fd, std::initializer_list<iovec> parts);
  uint64_t wire_bytes() const { return wire_bytes_; }  // encrypted bytes that the kernel has taken

 private:
  void seal(std::initializer_list<iovec> parts);
  void seal_record(const void* text, size_t bytes);

  RecordKey key_;
  std::vector<uint8_t> records_;
  size_t begin_ = 0, end_ = 0, text_bytes_ = 0;  // unsent part of records_; text in all of it
  uint64_t wire_bytes_ = 0;
};

class RecordReceiver {
 public:
  RecordReceiver(Cipher cipher, const Secret& key, uint64_t renew_bytes);
  ~RecordReceiver();
  RecordReceiver(const RecordReceiver&) = delete;
  RecordReceiver& operator=(const RecordReceiver&) = delete;
  // Like recv(2) with MSG_DONTWAIT. Once a record fails to open, errno is EBADMSG for good. Fewer bytes than there is
  // room for mean that the kernel has no more for now.
  ssize_t recv(int fd, void* to, size_t room);
  // Whether bytes from the kernel have not been returned by recv() yet.
  bool has_rest() const { return text_begin_ < text_end_ || begin_ < end_; }

 private:
  enum class Opened { kNothing, kRecord, kWrong };

  Opened open_record(uint8_t* to, size_t room, size_t* got);
  bool read_more(int fd);
  size_t next_record_bytes() const;

  RecordKey key_;
  std::vector<uint8_t> records_;
  size_t begin_ = 0, end_ = 0;            // unopened part of records_
  size_t text_begin_ = 0, text_end_ = 0;  // unread text of a record that was decrypted in place
  bool drained_ = false;                  // the last read got less than it asked for
  int broken_by_ = 0;                     // errno that every call gives from now on; 0: none
};

// Both directions of a connection.
struct SecureChannel : RecordSender, RecordReceiver {
  SecureChannel(Cipher cipher, const Secret& sends_by, const Secret& receives_by, uint64_t renew_bytes = kRenewBytes)
      : RecordSender(cipher, sends_by, renew_bytes), RecordReceiver(cipher, receives_by, renew_bytes) {}
};

// For a connection that may be encrypted; channel null: it is not.
ssize_t send_some(int fd, SecureChannel* channel, const void* data, size_t bytes);
ssize_t recv_some(int fd, SecureChannel* channel, void* to, size_t room);
// Moves the rest of `bytes` bytes, of which *done have been moved. kSome: the next call would block; kBroken: see
// errno, 0 if the other side closed the connection.
enum class Moved { kAll, kSome, kBroken };
// The same with some(at, bytes), which is like send(2) or recv(2).
template <class Some>
Moved move_rest(size_t bytes, size_t* done, Some some) {
  while (*done < bytes) {
    const ssize_t n = some(*done, bytes - *done);
    if (n > 0) *done += static_cast<size_t>(n);
    if (n == 0) errno = 0;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Moved::kSome;
    if (n == 0 || (n < 0 && errno != EINTR)) return Moved::kBroken;
  }
  return Moved::kAll;
}
Moved send_rest(int fd, SecureChannel* channel, const void* data, size_t bytes, size_t* done);
Moved recv_rest(int fd, SecureChannel* channel, void* to, size_t bytes, size_t* done);
// Like strerror(), for an errno of the functions above.
std::string why_broken(int sys_errno);

}  // namespace tutti
