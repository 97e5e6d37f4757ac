/* A transport plugin, as small as it gets: UNIX-domain sockets. Nothing of Tutti but tutti/transport.h is needed.
 *   cc -std=c99 -shared -fPIC -o libunix.so unix_plugin.c
 *   TUTTI_TRANSPORT_PLUGIN=./libunix.so TUTTI_TRANSPORTS=unix tutti-transport-test
 * A stream socket is the pipe; each side has a ring of slots, a header of 64 bytes before each. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tutti/transport.h"

enum { kMaxPending = 64 };

typedef struct {
  tuttiTag tag;
  uint32_t bytes, unused[7]; /* so that the payload is aligned */
  char payload[];
} Slot;

/* What comes first on a connection. The kernel says that the other end is of the same user, so it may see the key. */
typedef struct {
  uint8_t key[32];
  tuttiLinkConfig link; /* its peer: the rank that connects */
} Hello;

struct tuttiEndpoint {
  tuttiEndpointConfig config;
  struct sockaddr_un address;
  int listener, pending[kMaxPending], n_pending; /* connections whose hello has not come */
};

struct tuttiLink {
  tuttiLinkConfig config;
  const tuttiEndpoint* mine;
  struct sockaddr_un to;
  int fd, sends, said_hello, ready, failed;
  char* ring;
  uint64_t in, out; /* messages that have come into the ring, and gone out of it */
  size_t part;      /* bytes of the message under way that have passed */
};

static tuttiResult_t fail(tuttiTransportError* error, tuttiResult_t code, int peer, const char* what) {
  const tuttiTransportError all = {.code = code, .sys_errno = errno};
  if (error == NULL) return code;
  *error = all;
  snprintf(error->text, sizeof error->text, "unix link with rank %d: %s (%s)", peer, what, strerror(errno));
  return code;
}

static Slot* slot(tuttiLink* l, uint64_t message) {
  return (Slot*)(void*)(l->ring + message % l->config.slots * (sizeof(Slot) + l->config.slot_bytes));
}

/* NULL where there is no memory, or the configuration is not possible. */
static tuttiLink* new_link(const tuttiLinkConfig* c, const tuttiEndpoint* mine, int fd) {
  tuttiLink* l = calloc(1, sizeof *l);
  const tuttiLink link = {.config = *c, .mine = mine, .fd = fd};
  if (l != NULL) *l = link;
  if (l != NULL && c->slots >= 2 && c->slots <= 64 && c->slot_bytes > 0 && c->slot_bytes % 64 == 0 &&
      c->slot_bytes <= 64u << 20 &&
      posix_memalign((void**)&l->ring, 64, (sizeof(Slot) + c->slot_bytes) * (size_t)c->slots) == 0)
    return l;
  close(fd);
  free(l);
  return NULL;
}

static tuttiResult_t endpoint_open(const tuttiEndpointConfig* config, tuttiEndpoint** out, tuttiEndpointInfo* info,
                                   tuttiTransportError* error) {
  tuttiEndpoint* e = calloc(1, sizeof *e);
  socklen_t bytes = sizeof e->address;
  memcpy(&e->config, config, offsetof(tuttiEndpointConfig, memory_find));
  e->address.sun_family = AF_UNIX;
  e->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  /* Without a name: the kernel finds one. */
  *out = e;
  if (bind(e->listener, (struct sockaddr*)&e->address, sizeof(sa_family_t)) == 0 && listen(e->listener, 128) == 0 &&
      getsockname(e->listener, (struct sockaddr*)&e->address, &bytes) == 0) {
    memcpy(info->address, &e->address, info->address_bytes = sizeof e->address);
    return tuttiSuccess;
  }
  close(e->listener);
  free(e);
  return fail(error, tuttiSystemError, config->rank, "no socket to listen on");
}
static int endpoint_reaches(tuttiEndpoint* e, const void* address, uint32_t bytes, char* why, size_t why_bytes) {
  if (bytes == sizeof e->address && *(const sa_family_t*)address == AF_UNIX) return 1;
  snprintf(why, why_bytes, "it has no UNIX address");
  return 0;
}
static void endpoint_close(tuttiEndpoint* e) {
  while (e->n_pending > 0) close(e->pending[--e->n_pending]);
  close(e->listener);
  free(e);
}

static tuttiResult_t connect_link(tuttiEndpoint* e, const tuttiLinkConfig* config, const void* address, uint32_t bytes,
                                  tuttiLink** out, tuttiTransportError* error) {
  char text[100] = "this is not the address of a unix endpoint";
  if (!endpoint_reaches(e, address, bytes, text + sizeof text, 0))
    return fail(error, tuttiInvalidArgument, config->peer, text);
  snprintf(text, sizeof text, "%u slots of %u bytes are not possible", config->slots, config->slot_bytes);
  *out = new_link(config, e, socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (*out == NULL) return fail(error, tuttiInvalidArgument, config->peer, text);
  (*out)->sends = 1;
  memcpy(&(*out)->to, address, bytes);
  return tuttiSuccess;
}

/* One step of connecting: 1 when it is done, 0 when it has to be called again, -1 when it failed. */
static int advance_connect(tuttiLink* l) {
  const uint8_t* key = l->mine->config.group_key;
  Hello hello = {.link = l->config};
  struct ucred who = {.uid = (uid_t)-1};
  socklen_t bytes = sizeof who, name = sizeof(sa_family_t) + 6; /* a NUL and five digits */
  if (!l->said_hello) {
    if (connect(l->fd, (struct sockaddr*)&l->to, name) != 0) return errno == EAGAIN ? 0 : -1;
    if (getsockopt(l->fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) != 0 || who.uid != getuid()) return -1;
    memcpy(hello.key, key, sizeof hello.key);
    hello.link.peer = l->mine->config.rank;
    l->said_hello = send(l->fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello;
  }
  if (recv(l->fd, hello.key, sizeof hello.key, 0) != sizeof hello.key) return errno == EAGAIN ? 0 : -1;
  return memcmp(hello.key, key, sizeof hello.key) == 0 ? 1 : -1;
}

static tuttiResult_t accept_link(tuttiEndpoint* e, tuttiLink** out, tuttiLinkConfig* config,
                                 tuttiTransportError* none) {
  int fd, i;
  (void)none;
  *out = NULL;
  while (e->n_pending < kMaxPending && (fd = accept4(e->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
    e->pending[e->n_pending++] = fd;
  for (i = 0; i < e->n_pending && *out == NULL; i++) {
    Hello hello;
    const ssize_t n = recv(fd = e->pending[i], &hello, sizeof hello, 0);
    if (n < 0 && errno == EAGAIN) continue;
    e->pending[i--] = e->pending[--e->n_pending];
    *config = hello.link;
    if (n != sizeof hello || memcmp(hello.key, e->config.group_key, sizeof hello.key) != 0 || hello.link.peer < 0 ||
        hello.link.peer >= e->config.n_ranks || send(fd, hello.key, sizeof hello.key, MSG_NOSIGNAL) < 0)
      close(fd);
    else if ((*out = new_link(config, e, fd)) != NULL)
      (*out)->ready = 1;
  }
  return tuttiSuccess;
}

/* Passes bytes of one message, all of it at best. 0: not now, -1: the connection is gone. */
static int move(tuttiLink* l) {
  Slot* at = slot(l, l->sends ? l->out : l->in);
  const size_t whole = sizeof *at + (l->sends || l->part >= sizeof *at ? at->bytes : 0);
  char* from = (char*)at + l->part;
  const ssize_t n = l->sends ? send(l->fd, from, whole - l->part, MSG_NOSIGNAL) : recv(l->fd, from, whole - l->part, 0);
  if (n <= 0) return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
  l->part += (size_t)n;
  if (l->part < sizeof *at) return 1;
  if (at->bytes > l->config.slot_bytes) return -1;
  if (l->part < sizeof *at + at->bytes) return 1;
  l->part = 0;
  ++*(l->sends ? &l->out : &l->in);
  return 1;
}

static tuttiResult_t link_poll(tuttiLink* l, tuttiLinkState* state, tuttiTransportError* error) {
  char byte;
  int well = 1;
  if (state != NULL) state->unsent = 0;
  if (!l->failed && !l->ready && (well = advance_connect(l)) == 0) return tuttiInProgress;
  l->ready = l->ready || well > 0;
  if (l->sends && well > 0 && recv(l->fd, &byte, 1, 0) == 0) well = -1;
  while (!l->failed && well > 0 && (l->sends ? l->out < l->in : l->in - l->out < l->config.slots)) well = move(l);
  l->failed = l->failed || well < 0;
  if (state != NULL && l->sends) state->unsent = (uint32_t)(l->in - l->out);
  if (l->failed && (l->sends || l->in == l->out))
    return fail(error, tuttiRemoteError, l->config.peer, "its process ended or its communicator was destroyed");
  return tuttiSuccess;
}

static tuttiRoom acquire(tuttiLink* l, const void* data, uint32_t bytes, tuttiPosting posting, void** at) {
  (void)data, (void)bytes, (void)posting;
  *at = slot(l, l->in)->payload;
  return l->ready && l->in - l->out < l->config.slots ? TUTTI_SLOT : TUTTI_NO_ROOM;
}
static int publish(tuttiLink* l, const void* data, uint32_t bytes, const tuttiTag* tag) {
  Slot* at = slot(l, l->in);
  if (data != NULL) return 0;
  at->tag = *tag;
  at->bytes = bytes;
  l->in++;
  link_poll(l, NULL, NULL);
  return 1;
}
static int peek(tuttiLink* l, tuttiMessage* message) {
  const Slot* at = slot(l, l->out);
  const tuttiMessage there = {at->payload, at->bytes, at->tag};
  if (l->in != l->out) *message = there;
  return l->in != l->out;
}
static int wait_begin(tuttiLink* l, tuttiWait* wait) {
  if (l->ready) link_poll(l, NULL, NULL);
  wait->fd = l->fd;
  wait->events = l->ready && l->sends ? POLLOUT : POLLIN;
  return !l->failed && (!l->ready ? l->said_hello : l->sends ? l->in > l->out : l->in == l->out);
}

/* clang-format off */
static void release(tuttiLink* l) { l->out++; }
static void wait_end(tuttiLink* l) { (void)l; }
static void link_close(tuttiLink* l) { close(l->fd), free(l->ring), free(l); }

static const tuttiTransport kTable = {
    .abi_version = TUTTI_TRANSPORT_ABI_VERSION, .struct_bytes = sizeof(tuttiTransport), .name = "unix",
    .endpoint_open = endpoint_open, .endpoint_close = endpoint_close, .connect = connect_link, .accept = accept_link,
    .endpoint_reaches = endpoint_reaches, .link_poll = link_poll, .link_close = link_close, .wait_begin = wait_begin,
    .wait_end = wait_end, .acquire = acquire, .publish = publish, .peek = peek, .release = release};
/* clang-format on */
const tuttiTransport* tuttiTransportPlugin(char* why, size_t why_bytes);
const tuttiTransport* tuttiTransportPlugin(char* why, size_t why_bytes) {
  return (void)why, (void)why_bytes, &kTable;
}
