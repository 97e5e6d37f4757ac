// A client of PyTorch's TCPStore, which torchrun's agent serves on MASTER_PORT: enough of its protocol to set a key and
// to wait for one. All integers are little-endian, strings are a u64 length and bytes.
// Blocking; one thread. Keys get the prefix "/" that PyTorch's own client gives them, so that it sees the same keys.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace tutti {

class TcpStore {
 public:
  // Tries until the deadline: the server may not be up yet.
  static Result<TcpStore> connect(const std::string& host, uint16_t port, Deadline deadline);
  Result<void> set(const std::string& key, const std::string& value);
  // Waits for the key until the deadline. After kTimeout the connection can no longer be used.
  Result<std::string> get(const std::string& key);

 private:
  TcpStore(Fd fd, std::string where, Deadline deadline)
      : fd_(std::move(fd)), where_(std::move(where)), deadline_(deadline) {}
  Error explain(Error error, const std::string& doing) const;

  Fd fd_;
  std::string where_;
  Deadline deadline_;
};

}  // namespace tutti
