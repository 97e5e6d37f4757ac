#include "base/descriptor.h"

#include <sys/socket.h>

#include <cstring>

namespace tutti {

bool send_with_descriptor(int socket, const void* bytes, size_t n, const Fd& descriptor) {
  iovec data{const_cast<void*>(bytes), n};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int raw = descriptor.get();
    memcpy(CMSG_DATA(header), &raw, sizeof raw);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(n);
}

ssize_t receive_with_descriptor(int socket, void* bytes, size_t n, Fd* descriptor) {
  iovec data{bytes, n};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // not CMSG_SPACE, whose padding has room for a second descriptor
  const ssize_t received = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received <= 0) return received;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
    return received;
  int raw = -1;
  memcpy(&raw, CMSG_DATA(header), sizeof raw);
  descriptor->reset(raw);
  return received;
}

}  // namespace tutti
