// Bytes, with at most one file descriptor per call, through a UNIX socket, without blocking. Sending returns whether
// all bytes were sent, receiving what recv(2) returns.
#pragma once

#include <sys/types.h>

#include "base/fd.h"

namespace tutti {

bool send_with_descriptor(int socket, const void* bytes, size_t n, const Fd& descriptor);
ssize_t receive_with_descriptor(int socket, void* bytes, size_t n, Fd* descriptor);

}  // namespace tutti
