// Bytes and a descriptor through a UNIX socket, without blocking. Both give what send and recv give; at most one
// descriptor comes with one call.
#pragma once

#include <sys/types.h>

#include "base/fd.h"

namespace tutti {

bool send_with_descriptor(int socket, const void* bytes, size_t n, const Fd& descriptor);
ssize_t receive_with_descriptor(int socket, void* bytes, size_t n, Fd* descriptor);

}  // namespace tutti
