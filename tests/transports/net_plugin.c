/* A network plugin in NCCL's layout, version NET_VERSION (8 to 11), over UNIX sockets. It is as strict as a plugin may
 * be: it sends what a receive is posted for, from memory that is registered, takes so many requests and no more, asks
 * to be asked again now and then, and moves bytes only while somebody tests the first of its requests. Whatever its
 * user does wrong is an internal error. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { kSuccess = 0, kSystemError = 2, kInternalError = 3, kRemoteError = 6, kMostRequests = 32, kHost = 1 };

typedef void (*Log)(int level, unsigned long flags, const char* file, int line, const char* fmt, ...);
typedef struct Comm Comm;
typedef struct {
  Comm* comm;
  char* data;
  size_t bytes, passed; /* of the size that comes first, and of the data */
  uint64_t size;
} Request;
struct Comm {
  int fd, receives, asked, looked;
  uint64_t begun, done, posted; /* requests, the ended ones of them, and a sender's peer's receives */
  Request requests[kMostRequests];
  int regions;
};
typedef struct {
  Comm* comm;
  char *begin, *end;
} Region;

static Log log_to;

static Comm* new_comm(int fd, int receives) {
  Comm* c = calloc(1, sizeof *c);
  c->fd = fd;
  c->receives = receives;
  return c;
}

/* Every third time only: whoever asks has to ask again. */
static int not_now(Comm* c) {
  return ++c->asked % 3 != 0;
}

/* What a test wants to be missing: "devices", "host memory" (of the second one) or "figures". */
static int lacks(const char* what) {
  const char* lacked = getenv("NET_PLUGIN_LACKS");
  return lacked != NULL && strcmp(lacked, what) == 0;
}

static int count_devices(int* n) {
  *n = lacks("devices") ? 0 : 2;
  return kSuccess;
}

static int set_up(Log log) {
  log_to = log;
  log_to(3, 0, __FILE__, __LINE__, "version %d is set up", NET_VERSION);
  return kSuccess;
}
#if NET_VERSION == 10
static int set_up_profiled(Log log, void* profile) {
  return profile == NULL ? kInternalError : set_up(log);
}
#elif NET_VERSION == 11
static char context;
static int set_up_profiled(void** ctx, uint64_t id, int* traffic_class, Log log, void* profile) {
  *ctx = &context;
  return id != 0 || *traffic_class != -1 || profile == NULL ? kInternalError : set_up(log);
}
#else
#define set_up_profiled set_up
#endif

typedef struct {
  char *name, *pci_path;
  uint64_t guid;
  int kinds, is_global;
#if NET_VERSION > 8
  int force_flush;
#endif
  int megabits, port;
  float latency_us;
  int most_comms, most_receives, device_type, device_version;
} Properties;
static int properties(int device, Properties* p) {
  const Properties all = {
      .kinds = kHost, .megabits = 40000 + device, .port = 1, .latency_us = 7.5f, .most_receives = 1};
  *p = all;
  if (lacks("figures")) p->megabits = 0, p->latency_us = 0;
  if (lacks("host memory") && device == 1) p->kinds = 2; /* a GPU's */
  return device < 2 ? kSuccess : kInternalError;
}

static int listen_at(int device, void* handle, void** comm) {
  struct sockaddr_un* address = handle;
  socklen_t bytes = sizeof *address;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  (void)device;
  address->sun_family = AF_UNIX;
  /* Without a name: the kernel finds one. */
  if (bind(fd, handle, sizeof(sa_family_t)) != 0 || listen(fd, 128) != 0 || getsockname(fd, handle, &bytes) != 0)
    return kSystemError;
  *comm = new_comm(fd, 0);
  return kSuccess;
}

static int connect_to(int device, void* handle, void** comm) {
  char* asked = (char*)handle + sizeof(struct sockaddr_un); /* plugins keep notes in the handle */
  int fd;
  (void)device;
  *comm = NULL;
  if (++*asked % 3 != 0) return kSuccess;
  fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (connect(fd, handle, sizeof(sa_family_t) + 6) == 0) { /* a NUL and five digits */
    *comm = new_comm(fd, 0);
    return kSuccess;
  }
  close(fd);
  return errno == EAGAIN ? kSuccess : kRemoteError;
}
#if NET_VERSION <= 9
#define listen_of listen_at
static int connect_of(int device, void* handle, void** comm, void** none) {
  (void)none;
  return connect_to(device, handle, comm);
}
#elif NET_VERSION == 10
#define listen_of listen_at
static int connect_of(int device, int* traffic_class, void* handle, void** comm, void** none) {
  (void)none;
  return *traffic_class != -1 ? kInternalError : connect_to(device, handle, comm);
}
#else
static int listen_of(void* ctx, int device, void* handle, void** comm) {
  return ctx != &context ? kInternalError : listen_at(device, handle, comm);
}
static int connect_of(void* ctx, int device, void* handle, void** comm, void** none) {
  (void)none;
  return ctx != &context ? kInternalError : connect_to(device, handle, comm);
}
#endif

static int accept_of(Comm* listener, void** comm, void** none) {
  const int fd = not_now(listener) ? -1 : accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  (void)none;
  *comm = fd < 0 ? NULL : new_comm(fd, 1);
  return kSuccess;
}

static int pin(Comm* comm, char* data, size_t bytes, int kind, void** out) {
  const char* who = getenv("NET_PLUGIN_PINS_NO"); /* sender or receiver */
  if (who != NULL && (*who == 'r') == comm->receives) return kSystemError;
  Region* region = malloc(sizeof *region);
  region->comm = comm;
  region->begin = data;
  region->end = data + bytes;
  comm->regions++;
  *out = region;
  return kind == kHost ? kSuccess : kInternalError;
}
static int unpin(Comm* comm, Region* region) {
  comm->regions--;
  free(region);
  return kSuccess;
}

static int begin(Comm* c, char* data, size_t bytes, const Region* in, Request** request) {
  Request* r = &c->requests[c->begun % kMostRequests];
  *request = NULL;
  if (in->comm != c || data < in->begin || data + bytes > in->end) return kInternalError;
  if (c->begun - c->done == kMostRequests) return kInternalError;
  r->comm = c;
  r->data = data;
  r->bytes = bytes;
  r->size = bytes;
  r->passed = 0;
  c->begun++;
  *request = r;
  return kSuccess;
}
static int send_it(Comm* c, char* data, size_t bytes, const Region* in, Request** request) {
  char posts[64];
  const ssize_t n = recv(c->fd, posts, sizeof posts, 0);
  *request = NULL;
  if (n == 0) return kRemoteError;
  c->posted += n > 0 ? (size_t)n : 0;
  if (c->posted <= c->begun || not_now(c)) return kSuccess;
  const char* spoilt = getenv("NET_PLUGIN_SPOILS"); /* a byte of each message */
  if (spoilt != NULL) data[atoi(spoilt)] ^= 1;
  return begin(c, data, bytes, in, request);
}
static int receive_it(Comm* c, int n, char** data, size_t bytes, Region** in, Request** request) {
  *request = NULL;
  if (n != 1) return kInternalError;
  if (c->asked < 3 && not_now(c)) return kSuccess; /* as long as it has just been accepted */
  if (send(c->fd, "", 1, MSG_NOSIGNAL) != 1 && errno == EAGAIN) return kSuccess;
  return begin(c, *data, bytes, *in, request);
}
#if NET_VERSION == 8
typedef int Size;
#else
typedef size_t Size;
#endif
#if NET_VERSION <= 9
static int send_of(Comm* c, char* data, Size bytes, int tag, Region* in, Request** request) {
  return tag != 0 ? kInternalError : send_it(c, data, (size_t)bytes, in, request);
}
static int receive_of(Comm* c, int n, char** data, Size* bytes, int* tags, Region** in, Request** request) {
  return *tags != 0 ? kInternalError : receive_it(c, n, data, (size_t)*bytes, in, request);
}
#else
static int send_of(Comm* c, char* data, Size bytes, int tag, Region* in, void* profile, Request** request) {
  return tag != 0 || profile != NULL ? kInternalError : send_it(c, data, bytes, in, request);
}
static int receive_of(Comm* c, int n, char** data, Size* bytes, int* tags, Region** in, void** profile,
                      Request** request) {
  return *tags != 0 || *profile != NULL ? kInternalError : receive_it(c, n, data, *bytes, in, request);
}
#endif

/* The size and then the data. Sending, as the kernel takes them; 0: not now, -1: broken. */
static ssize_t pass(Request* r) {
  const int is_size = r->passed < sizeof r->size;
  char* from = is_size ? (char*)&r->size + r->passed : r->data + (r->passed - sizeof r->size);
  const size_t left = (is_size ? sizeof r->size : sizeof r->size + r->size) - r->passed;
  const ssize_t n = r->comm->receives ? recv(r->comm->fd, from, left, 0) : send(r->comm->fd, from, left, MSG_NOSIGNAL);
  if (n > 0) r->passed += (size_t)n;
  return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : n > 0 ? n : -1;
}
static int test(Request* r, int* done, int* bytes) {
  const char* looks = getenv("NET_PLUGIN_LATE"); /* after so many, something has come */
  Comm* c = r->comm;
  ssize_t n = 1;
  *done = 0;
  if (r != &c->requests[c->done % kMostRequests]) return kSuccess;
  if (c->receives && looks != NULL && c->looked++ < atoi(looks)) return kSuccess;
  while (n > 0 && (r->passed < sizeof r->size || r->passed < sizeof r->size + r->size)) {
    n = pass(r);
    if (r->passed >= sizeof r->size && r->size > r->bytes) return kInternalError;
  }
  if (n <= 0) return n < 0 ? kRemoteError : kSuccess;
  *done = 1;
  *bytes = (int)r->size;
  c->done++;
  return kSuccess;
}

static int close_of(Comm* c) {
  if (c->regions != 0) abort(); /* forgotten */
  close(c->fd);
  free(c);
  return kSuccess;
}

typedef void (*Function)(void);
#define F(function) (Function) function
extern const struct Table {
  const char* name;
  Function functions[20];
} NET_TABLE;
const struct Table NET_TABLE = {
    "Made up",
    {F(set_up_profiled), F(count_devices), F(properties), F(listen_of), F(connect_of), F(accept_of), F(pin), NULL,
     F(unpin), F(send_of), F(receive_of), NULL, F(test), F(close_of), F(close_of), F(close_of)}};
/* Plugins have tables of several versions, of which the newest one is to be used. */
static int fails(void) {
  return kInternalError;
}
extern const struct Table NET_OLDER_TABLE;
const struct Table NET_OLDER_TABLE = {"Too old", {F(fails), F(fails), F(fails)}};
