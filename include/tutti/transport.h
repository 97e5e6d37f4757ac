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
 * publish, peek, release. The other ten may be NULL. They save copies: a sender exposes its memory instead of filling a
 * slot (publish, read), a receiver posts where a message belongs (post, acquire), and either can withdraw that
 * (revoke).
 *
 * Who picks: the sending rank calls connect() on the transports that reach the peer, in order of preference, until one
 * becomes ready; the receiving rank accepts whatever arrives.
 *
 * Threads: an endpoint and all its links are used by one thread at a time. Nothing here blocks, and nothing calls back.
 * Lifetime: links are closed before their endpoint.
 * Errors: functions that return tuttiResult_t fill *error (if given) with a code and a sentence that names the peer and
 * the remedy. Once a link has failed it stays failed; only link_close is allowed then.
 * Versions: every struct that may grow begins with its size, and grows at its end. A reader takes
 * fields that a shorter struct lacks for 0 (NULL).
 *
 * A plugin is a shared object whose path is in TUTTI_TRANSPORT_PLUGIN (several: with commas between). It exports one
 * function, tuttiTransportPlugin. tests/transports/unix_plugin.c is a small one, and the installed program
 * tutti-transport-test checks a plugin for everything that this header promises. A shared object that exports a
 * table of NCCL's instead (ncclNetPlugin_v8 to v11) becomes the transport "net"; there may be one of those.
 */
#ifndef TUTTI_TRANSPORT_H_
#define TUTTI_TRANSPORT_H_

#include <stddef.h>
#include <stdint.h>

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_TRANSPORT_ABI_VERSION 3u
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

  /* The user's registered memory (tuttiCommRegister, tuttiMemAlloc), for devices that have to know memory before they
   * move bytes from or to it. NULL, all three: none is known. Callable from any thread, as long as the endpoint is
   * open. memory_find: the registration that has all of these bytes: its number, never 0 and never given out again, and
   * where it begins and ends. 0: these bytes are not registered, so what lies there may change unnoticed.
   * memory_removals: changes whenever a registration ends. A transport that keeps state for a registration checks this
   * before using that state, and calls memory_is_live if it has changed. */
  uint64_t (*memory_find)(const void* data, uint64_t bytes, uintptr_t* begin, uintptr_t* end);
  uint64_t (*memory_removals)(void);
  int (*memory_is_live)(uint64_t number);
  /* May be NULL: then all registered memory is the host's. Whether a registration is of a device's memory, which the
   * CPU cannot touch: a descriptor of the dmabuf that stands for it, which the caller closes, with the place of the
   * registration's first byte behind it in *offset_bytes; else -1. From any thread. */
  int (*memory_dmabuf)(uint64_t number, uint64_t* offset_bytes);
  /* 1: what leaves the process other than through shared memory is encrypted. A transport that cannot do that is not
   * opened then. */
  uint32_t encrypt;
} tuttiEndpointConfig;

/* Of an endpoint: how peers find it, and what it presumably does, to choose between several that reach a peer: the one
 * that brings 128 KiB soonest, but shared memory with who has it in common. Preset to what is between that and TCP. */
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
  /* Of who connects: how many connections of a network's protocol should share the link, since its peer is far away and
   * one does not fill the network; 0: as many as the transport likes. */
  uint32_t connections;
} tuttiLinkConfig;

typedef struct {
  /* Valid until release; 64-byte aligned, up to 16 bytes 16-byte aligned. NULL with bytes > 0: see read. */
  const void* data;
  uint32_t bytes;
  tuttiTag tag;
} tuttiMessage;

typedef struct {
  uint32_t struct_bytes; /* set by the caller */
  /* Of a sending side: how many published messages still hold this rank up. They need it to call link_poll before they
   * can arrive, or their bytes are exposed and not released. link_close drops those; the others arrive. */
  uint32_t unsent;
  /* Likewise: how many segments or packets were sent again, because the network had lost them or been slow. It never
   * decreases. A transport that does not count leaves it as it is. */
  uint64_t resent;
  /* 1 more than the rank whose fault it is that the link fails; 0: its peer's. A rank that waits for one link may do so
   * because another one of its endpoint has failed. */
  uint32_t culprit_plus_1;
} tuttiLinkState;

/* What acquire gives. */
typedef enum {
  TUTTI_NO_ROOM = 0,
  TUTTI_SLOT = 1,    /* a slot of the link's, to be filled */
  TUTTI_POSTED = 2,  /* where the receiver has posted the message, to be filled */
  TUTTI_EXPOSED = 3, /* the caller's own memory, to be published from there */
} tuttiRoom;

/* How acquire treats a place that the receiver has posted: ignore it, use it if there is one, or wait for it. */
typedef enum { TUTTI_NOT_POSTED = 0, TUTTI_IF_POSTED = 1, TUTTI_REQUIRED = 2 } tuttiPosting;

/* A descriptor to sleep on, for poll(2). */
typedef struct {
  int fd;
  short events;
  /* Where that is known, 1 more than the CPU on which the peer was last seen: one of this host. Else 0. Who waits there
   * keeps the peer from running. */
  uint32_t peer_cpu_plus_1;
} tuttiWait;

typedef struct {
  uint32_t abi_version;  /* TUTTI_TRANSPORT_ABI_VERSION */
  uint32_t struct_bytes; /* sizeof(tuttiTransport): later versions append */
  const char* name;      /* as in TUTTI_TRANSPORTS */

  /* ---- endpoints ---- */

  /* Creates an endpoint and fills *info. Errors: tuttiSystemError, tuttiInvalidUsage (configuration). */
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
  /* May be NULL: then all peers that have such an endpoint. Non-zero if a peer with this address may be reached. Else
   * `why` (of `why_bytes`) receives the reason. */
  int (*endpoint_reaches)(tuttiEndpoint* endpoint, const void* peer_address, uint32_t address_bytes, char* why,
                          size_t why_bytes);
  /* May be NULL: then the transport has no way past the CPU, which is the usual case, and nobody requires places. It is
   * for registered memory that may be a device's (memory_dmabuf): such bytes go right from where they lie to where they
   * belong, and no slot takes them, so a message may be longer than a slot, up to TUTTI_DELIVERY_MAX_BYTES.
   * Non-zero if the endpoint can move bytes from and to all of this registered memory, which it may keep ready from now
   * on. Else `why` (of `why_bytes`) receives the reason, as from the device. With NULL for `data` the endpoint only
   * gives up what it has kept ready of registrations that have ended. */
  int (*endpoint_registers)(tuttiEndpoint* endpoint, const void* data, uint64_t bytes, char* why, size_t why_bytes);
  /* May be NULL. All ranks are known: where `here` is 0 none of the others is on this host, where `elsewhere` is 0 none
   * is on another one. An endpoint may stop to listen where nobody will come from. */
  void (*endpoint_narrow)(tuttiEndpoint* endpoint, int here, int elsewhere);

  /* ---- both ends of a link ---- */

  /* Moves bytes, and fills *state (if given), whatever it returns. tuttiSuccess: the link is ready; tuttiInProgress:
   * still connecting; else it failed. Failures are reported only here, so call it when the other functions have
   * nothing. */
  tuttiResult_t (*link_poll)(tuttiLink* link, tuttiLinkState* state, tuttiTransportError* error);
  void (*link_close)(tuttiLink* link);
  /* May be NULL if nothing is exposed or taken to posted places. After a failure, on either side: when it returns
   * nobody reads memory that this side has exposed, nor ever will, this side reads nothing of the other's, and nothing
   * is put where it was posted. The link is of no use then. */
  void (*revoke)(tuttiLink* link);
  /* Both may be NULL: then a rank that waits polls from time to time. Before sleeping: fills *wait with what becomes
   * ready when the link can go on, and returns 1; returns 0 if it may go on already, so do not sleep. A sending side
   * waits for a slot, or what acquire could not give else, or for unsent messages to leave; a receiving one for a
   * message. Sleep for a limited time only while the link is connecting. */
  int (*wait_begin)(tuttiLink* link, tuttiWait* wait);
  /* After waking, for every wait_begin. */
  void (*wait_end)(tuttiLink* link);

  /* ---- sending ---- */

  /* Where the next message is to be written, in *at: TUTTI_NO_ROOM when no slot is free, and until link_poll says that
   * the link is ready. Else TUTTI_SLOT, the same slot until publish; `slots` messages at least can be published without
   * the receiver's doing. `bytes` of the message, at most; 0: as many as a slot has. May be called again instead of
   * publishing: what it gave before must not be filled any more.
   * TUTTI_EXPOSED, if `data` is given and it costs less to publish `bytes` from there (they need not be there yet).
   * TUTTI_POSTED, with TUTTI_IF_POSTED, if the receiver has posted a place for this message, it is of `bytes` and that
   * memory can be written from here. If several of these apply, the last one counts. TUTTI_REQUIRED: the message
   * belongs in a place that the receiver requires. TUTTI_EXPOSED once that is known, until then TUTTI_NO_ROOM. */
  tuttiRoom (*acquire)(tuttiLink* link, const void* data, uint32_t bytes, tuttiPosting posting, void** at);
  /* Sends the message. `data`: NULL for what was written where acquire said; or, after any acquire, the caller's own
   * memory, exposed: it is read there, by the receiver or the link, and has to stay as it is until link_poll does not
   * count the message as unsent, or revoke. Returns 0 if this memory cannot be exposed: then acquire and fill a slot.
   * 2: the message does not hold this rank up. 1: link_poll has to be asked. */
  int (*publish)(tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag* tag);
  /* May be NULL. acquire, a copy of `bytes` from `data` into the slot, and publish, at once; 0 if no slot is free. */
  int (*push)(tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag* tag);

  /* ---- receiving ---- */

  /* Zero when there is no message. The same message until release. */
  int (*peek)(tuttiLink* link, tuttiMessage* message);
  void (*release)(tuttiLink* link);
  /* May be NULL. The data of the message that peek has, if it is of `bytes` with this tag. NULL where there is none, or
   * another, or one to be read. */
  const void* (*match)(tuttiLink* link, uint32_t bytes, const tuttiTag* tag);
  /* May be NULL if no peek needs it: a message's bytes are exposed memory of the sender's. *data is where they can be
   * read, from here to release: until then the sender cannot revoke them. Errors: tuttiRemoteError (they are revoked,
   * or cannot be read any more). */
  tuttiResult_t (*read)(tuttiLink* link, const void** data, tuttiTransportError* error);
  /* May be NULL. The message that comes after `ahead` others, counted from the one that is peeked next, belongs at `to`
   * if it is of `bytes`. The link may put it there; then its data is `to`. With `ahead` 0 only while peek has nothing.
   * Of those with `ahead` > 0 one at a time: not called again before that message was peeked. `to`, and what other
   * memory there is at the same place (the caller may have exposed it), must stay, and not be read by anybody who could
   * still see it change, until the message was peeked, or revoke. `required`: it belongs there and nowhere else. If the
   * sender's message has another length, only its tag and that length arrive, and its data is NULL. Posting again for
   * the same message has no effect. Returns 0 if this memory cannot be used: without `required` the message comes in a
   * slot. */
  int (*post)(tuttiLink* link, uint32_t ahead, void* to, uint32_t bytes, int required);
} tuttiTransport;

/* What a plugin exports under the name "tuttiTransportPlugin". Called once, before anything else. Returns its table,
 * which stays as it is to the end of the process; or NULL, with a sentence in `why` (of `why_bytes`), if it cannot be
 * used on this machine, for example because there is no device. */
typedef const tuttiTransport* (*tuttiTransportPlugin_t)(char* why, size_t why_bytes);

#ifdef __cplusplus
}
#endif
#endif
