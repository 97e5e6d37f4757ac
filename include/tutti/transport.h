/* The transport ABI: what a network must provide so that Tutti can run collectives over it. C99. The built-in
 * transports (shm, tcp) are written against this header, and so is a plugin.
 *
 * A transport has endpoints and links.
 *   - endpoint: one rank's local half. It has an address, an opaque blob that travels to the other ranks through the
 *     group; a peer connects to it with that blob.
 *   - link: a one-way ordered pipe of `slots` fixed slots of `slot_bytes` payload each, from one rank to another.
 *
 *      sending rank                                        receiving rank
 *      acquire -> memory of a free slot to fill
 *      publish(bytes, tag)                     --->        peek -> a message: data, bytes, tag
 *                          <---  slot is free again        release
 *
 * A transport needs ten functions: endpoint_open, endpoint_close, connect, accept, link_poll, link_close, acquire,
 * publish, peek, release. The other ten may be NULL. Some of them save copies: a sender exposes its memory instead of
 * filling a slot (publish, read), a receiver posts where a message belongs (post, acquire), and either can take that
 * back (revoke).
 *
 * Who picks: the sending rank calls connect() on the transports that reach the peer, in order of preference, until one
 * becomes ready; the receiving rank accepts whatever arrives.
 *
 * Threads: an endpoint and all its links are used by one thread at a time. Nothing here blocks, and nothing calls back.
 * Lifetime: links are closed before their endpoint.
 * Errors: functions that return tuttiResult_t fill *error (if given) with a code and a sentence that names the peer and
 * the remedy. Once a link has failed it stays failed, and link_poll says so each time. Its functions may still be
 * called until link_close; none of them sends or receives anything more, and wait_begin returns 0. Versions: every
 * struct that may grow has a struct_bytes, and grows at its end. A reader treats the fields that a shorter struct does
 * not have as 0 (NULL).
 *
 * A plugin is a shared object whose path is in TUTTI_TRANSPORT_PLUGIN (several: with commas between). It exports one
 * function, tuttiTransportPlugin. tests/transports/unix_plugin.c is a small one, and the program tutti-transport-test,
 * built with the tests, checks a plugin for everything that this header promises. A shared object that exports one of
 * NCCL's tables instead (ncclNetPlugin_v8 to v11) becomes the transport "net"; only one of those can be loaded.
 */
#ifndef TUTTI_TRANSPORT_H_
#define TUTTI_TRANSPORT_H_

#include <stddef.h>
#include <stdint.h>

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_TRANSPORT_ABI_VERSION 4u
#define TUTTI_ADDRESS_MAX_BYTES 1024u
#define TUTTI_DELIVERY_MAX_BYTES (4u << 20)

/* 32 bytes that travel with every message, opaque to the transport. */
typedef struct {
  uint64_t word[4];
} tuttiTag;

typedef struct {
  tuttiResult_t code;
  int sys_errno;
  char text[500];
} tuttiTransportError;

typedef struct tuttiEndpoint tuttiEndpoint;
typedef struct tuttiLink tuttiLink;

typedef struct {
  uint32_t struct_bytes;
  int32_t rank;
  int32_t n_ranks;
  uint8_t group_key[32]; /* both ends of a connection must prove to each other that they know it */

  /* The user's registered memory (tuttiCommRegister, tuttiMemAlloc), for devices that must know memory before they move
   * bytes from or to it. NULL, all three: none is known. Callable from any thread while the endpoint is open.
   * memory_find: the number of the registration that contains all of these bytes, never 0 and never reused, and where
   * it begins and ends. 0: they are not registered, so the memory there may be replaced unnoticed.
   * memory_removals: changes whenever a registration ends. A transport that keeps state for a registration checks this
   * before using that state, and calls memory_is_live if it has changed. */
  uint64_t (*memory_find)(const void* data, uint64_t bytes, uintptr_t* begin, uintptr_t* end);
  uint64_t (*memory_removals)(void);
  int (*memory_is_live)(uint64_t number);
  /* May be NULL: then all registered memory is the host's. For a registration of device memory, which the CPU cannot
   * access: returns a descriptor of its dmabuf, which the caller closes, and sets *offset_bytes to the offset of the
   * registration's first byte in it. Otherwise returns -1. From any thread. */
  int (*memory_dmabuf)(uint64_t number, uint64_t* offset_bytes);
  /* 1: all that leaves the process other than through shared memory must be encrypted. A transport that cannot do that
   * is not opened. */
  uint32_t encrypt;
} tuttiEndpointConfig;

/* How peers find an endpoint, and its estimated speed. Of the transports that reach a peer Tutti takes, unless
 * TUTTI_TRANSPORTS or config.transports gives an order, shm if it can, else the one with the least
 * latency_ns + 128 KiB / bytes_per_second. Preset to 10 us and 5 GB/s. */
typedef struct {
  uint32_t struct_bytes;     /* set by the caller */
  uint32_t latency_ns;       /* until a message of a few bytes has arrived */
  uint64_t bytes_per_second; /* of one link */
  uint32_t address_bytes;
  char address[TUTTI_ADDRESS_MAX_BYTES];
} tuttiEndpointInfo;

typedef struct {
  uint32_t struct_bytes;
  int32_t peer;        /* the rank at the other end */
  uint32_t channel;    /* tells apart several links between the same two ranks */
  uint32_t slots;      /* 2 .. 64 */
  uint32_t slot_bytes; /* a multiple of 64 */
  /* Set by the connecting side: how many connections of the network's protocol should share the link, because its peer
   * is far away and one does not fill the network; 0: the transport chooses. */
  uint32_t connections;
} tuttiLinkConfig;

typedef struct {
  /* Valid until release; 64-byte aligned (16-byte for up to 16 bytes). NULL with bytes > 0: see read. */
  const void* data;
  uint32_t bytes;
  tuttiTag tag;
} tuttiMessage;

typedef struct {
  uint32_t struct_bytes; /* set by the caller */
  /* Sending side: how many published messages still need this rank. Either they cannot arrive before it calls
   * link_poll, or their bytes are exposed and not released. link_close drops these messages; all others arrive. */
  uint32_t unsent;
  /* Sending side: how many segments or packets were sent again because the network had lost or delayed them. Never
   * decreases. A transport that does not count them leaves it unchanged. */
  uint64_t resent;
  /* 1 + the rank that caused the link to fail; 0: its peer. A rank may be waiting for one link because another link of
   * its endpoint has failed. */
  uint32_t culprit_plus_1;
} tuttiLinkState;

/* What acquire returns. */
typedef enum {
  TUTTI_NO_ROOM = 0,
  TUTTI_SLOT = 1,    /* a slot of the link, to be filled */
  TUTTI_POSTED = 2,  /* the place that the receiver has posted, to be filled */
  TUTTI_EXPOSED = 3, /* the caller's own memory, to be published from there */
} tuttiRoom;

/* How acquire treats a place that the receiver has posted: ignore it, use it if there is one, or wait for it. */
typedef enum { TUTTI_NOT_POSTED = 0, TUTTI_IF_POSTED = 1, TUTTI_REQUIRED = 2 } tuttiPosting;

/* What to sleep on: descriptors, for poll(2), and a time. The caller presets it to {-1}: nothing, so the rank polls
 * from time to time. */
typedef struct {
  int fd; /* -1: none */
  short events;
  /* 1 + the CPU of this host on which the peer was last seen, if that is known; else 0. A rank that waits on that CPU
   * keeps the peer from running. */
  uint32_t peer_cpu_plus_1;
  uint64_t at_most_ns; /* sleep no longer than this, even if no descriptor becomes ready; 0: no limit */
  uint32_t n_more;     /* how many further descriptors there are */
  struct {
    int fd;
    short events;
  } more[16];
} tuttiWait;

typedef struct {
  uint32_t abi_version;  /* TUTTI_TRANSPORT_ABI_VERSION */
  uint32_t struct_bytes; /* sizeof(tuttiTransport): later versions append */
  const char* name;      /* as in TUTTI_TRANSPORTS */

  /* ---- endpoints ---- */

  /* Creates an endpoint and fills *info. Errors: tuttiSystemError: this transport is not used, and others are;
   * tuttiInvalidUsage: the user has set something that must be corrected, so no communicator is created. */
  tuttiResult_t (*endpoint_open)(const tuttiEndpointConfig* config, tuttiEndpoint** endpoint, tuttiEndpointInfo* info,
                                 tuttiTransportError* error);
  /* All links must be closed. */
  void (*endpoint_close)(tuttiEndpoint* endpoint);
  /* Starts a link to `config->peer`; link_poll tells when it is ready. */
  tuttiResult_t (*connect)(tuttiEndpoint* endpoint, const tuttiLinkConfig* config, const void* peer_address,
                           uint32_t address_bytes, tuttiLink** link, tuttiTransportError* error);
  /* Takes the next incoming link that is ready (its sender's configuration in *config), or sets *link to NULL.
   * Connections that cannot prove the group key are dropped here without an error. */
  tuttiResult_t (*accept)(tuttiEndpoint* endpoint, tuttiLink** link, tuttiLinkConfig* config,
                          tuttiTransportError* error);
  /* May be NULL: then every peer that has such an endpoint. Non-zero if the peer with this address may be reachable.
   * Else `why` (of `why_bytes`) receives the reason. */
  int (*endpoint_reaches)(tuttiEndpoint* endpoint, const void* peer_address, uint32_t address_bytes, char* why,
                          size_t why_bytes);
  /* May be NULL, the usual case: then the transport cannot bypass the CPU, and no receiver requires places. For
   * registered memory that may be a device's (memory_dmabuf): such bytes go directly from their source to their
   * destination, never through a slot, so a message may be longer than a slot, up to TUTTI_DELIVERY_MAX_BYTES.
   * Non-zero if the endpoint can move bytes from and to all of this registered memory, which it may keep registered
   * with its device from now on. Else `why` (of `why_bytes`) receives the reason, such as the device's. With NULL for
   * `data` the endpoint only gives up what it has kept for registrations that have ended. */
  int (*endpoint_registers)(tuttiEndpoint* endpoint, const void* data, uint64_t bytes, char* why, size_t why_bytes);
  /* May be NULL. Called once all ranks are known: if `here` is 0, no other rank is on this host; if `elsewhere` is 0,
   * none is on another host. An endpoint may stop listening where no rank will connect from. */
  void (*endpoint_narrow)(tuttiEndpoint* endpoint, int here, int elsewhere);

  /* ---- both ends of a link ---- */

  /* Moves bytes, and fills *state (if given), whatever it returns. tuttiSuccess: the link is ready; tuttiInProgress:
   * still connecting; else it has failed. Failures are reported only here, so call it when the other functions return
   * nothing. */
  tuttiResult_t (*link_poll)(tuttiLink* link, tuttiLinkState* state, tuttiTransportError* error);
  void (*link_close)(tuttiLink* link);
  /* May be NULL if the transport neither exposes memory nor uses posted places. For either side after a failure: once
   * it returns, nobody reads memory that this side has exposed, now or later, this side reads none of the peer's, and
   * nothing is written to a posted place. The link is unusable from then on. */
  void (*revoke)(tuttiLink* link);
  /* Both may be NULL: then a waiting rank polls from time to time. Before sleeping: fills *wait with descriptors of
   * which one becomes ready when the link can go on, or with the time to look again, and returns 1; returns 0 if it may
   * go on already, so do not sleep. A sending side waits for a slot or whatever else acquire could not give, or for
   * unsent messages to leave; a receiving side waits for a message. While the link is connecting, sleep only for a
   * limited time. */
  int (*wait_begin)(tuttiLink* link, tuttiWait* wait);
  /* After waking, for every wait_begin. */
  void (*wait_end)(tuttiLink* link);

  /* ---- sending ---- */

  /* Sets *at to where the next message must be written. TUTTI_NO_ROOM while no slot is free, and until link_poll says
   * that the link is ready. Else TUTTI_SLOT, the same slot until publish; at least `slots` messages can be published
   * without the receiver doing anything. The message has at most `bytes`; 0: as many as a slot. May be called again
   * instead of publishing: then the place that it gave before must no longer be filled.
   * TUTTI_EXPOSED, if `data` is given and publishing `bytes` from there (they need not be there yet) costs less.
   * TUTTI_POSTED, with TUTTI_IF_POSTED, if the receiver has posted a place of `bytes` for this message and that memory
   * can be written from here. If several of these apply, the last one counts. TUTTI_REQUIRED: the message belongs in a
   * place that the receiver requires. TUTTI_EXPOSED once that place is known, until then TUTTI_NO_ROOM. */
  tuttiRoom (*acquire)(tuttiLink* link, const void* data, uint32_t bytes, tuttiPosting posting, void** at);
  /* Sends the message. `data`: NULL for what was written where acquire said; or, after any acquire, the caller's own
   * memory, which this exposes: the receiver or the link reads it there, and it must not change until link_poll no
   * longer counts the message as unsent, or revoke. Returns 0 if this memory cannot be exposed: then acquire a slot and
   * fill it. 2: the message is not unsent. 1: link_poll must be asked. */
  int (*publish)(tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag* tag);
  /* May be NULL. acquire, copy `bytes` from `data` into the slot, and publish, in one call; 0 if no slot is free. */
  int (*push)(tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag* tag);

  /* ---- receiving ---- */

  /* Zero when there is no message. Gives the same message until release. */
  int (*peek)(tuttiLink* link, tuttiMessage* message);
  void (*release)(tuttiLink* link);
  /* May be NULL. The data of the message that peek gives, if it has `bytes` and this tag. NULL if there is no message,
   * or another one, or one that needs read. */
  const void* (*match)(tuttiLink* link, uint32_t bytes, const tuttiTag* tag);
  /* May be NULL if peek never gives a message whose bytes are the sender's exposed memory. Sets *data to where they can
   * be read until release; the sender cannot revoke them before that. Errors: tuttiRemoteError (they are revoked, or
   * can no longer be read), tuttiSystemError (this process lacks what it needs for that). */
  tuttiResult_t (*read)(tuttiLink* link, const void** data, tuttiTransportError* error);
  /* May be NULL. The message that comes after `ahead` others, counted from the one that is peeked next, belongs at `to`
   * if it has `bytes`. The link may put it there; then its data is `to`. `ahead` 0: only while peek has nothing.
   * `ahead` > 0: one at a time; not called again until that message has been peeked. `to`, and any memory that overlaps
   * it (the caller may have exposed it), must stay valid and not be read by anyone who could see it change, until the
   * message has been peeked, or revoke. `required`: the message belongs there and nowhere else. If the sender's message
   * has another length, only its tag and that length arrive, and its data is NULL. Posting again for the same message
   * has no effect. Returns 0 if this memory cannot be used: without `required` the message then comes in a slot. */
  int (*post)(tuttiLink* link, uint32_t ahead, void* to, uint32_t bytes, int required);
} tuttiTransport;

/* What a plugin exports under the name "tuttiTransportPlugin". Called once, before anything else. Returns its table,
 * which never changes until the process ends; or NULL, with a sentence in `why` (of `why_bytes`), if it cannot be
 * used on this machine, for example because there is no device. */
typedef const tuttiTransport* (*tuttiTransportPlugin_t)(char* why, size_t why_bytes);

#ifdef __cplusplus
}
#endif
#endif
