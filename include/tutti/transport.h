/* The transport ABI: what a network must provide so that Tutti can run collectives over it. C99. The built-in
 * transports (shm, tcp) are written against this header, and so is a plugin.
 *
 * A transport has endpoints and links.
 *   - endpoint: one rank's local half. It has an address, an opaque blob that travels to the other ranks through the
 *     group; a peer connects to it with that blob.
 *   - link: a one-way ordered pipe of `slots` fixed slots of `slot_bytes` payload each, from one rank to another.
 *
 *      sending rank                                        receiving rank
 *      try_acquire -> memory of a free slot to fill
 *      publish(bytes, tag)                     --->        try_peek -> a message: data, bytes, tag
 *                          <---  slot is free again        release
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

#define TUTTI_TRANSPORT_ABI_VERSION 1u
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
   * memory_removals: changes whenever a registration ends. Whoever keeps anything for a registration looks here before
   * using it, and if it has changed asks memory_is_live. */
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

/* What an endpoint presumably does, to choose between several that reach a peer: the one that brings 128 KiB soonest.
 */
typedef struct {
  uint32_t struct_bytes;     /* set by the caller */
  uint32_t latency_ns;       /* until a message of a few bytes has arrived */
  uint64_t bytes_per_second; /* of one link */
} tuttiTransportProperties;

typedef struct {
  uint32_t struct_bytes;
  int32_t peer;        /* the rank at the other end */
  uint32_t channel;    /* tells apart several links between the same two ranks */
  uint32_t slots;      /* 2 .. 64 */
  uint32_t slot_bytes; /* a multiple of 64 */
} tuttiLinkConfig;

typedef struct {
  /* Valid until release; 64-byte aligned, up to 16 bytes 16-byte aligned. NULL with bytes > 0: lent, see borrow. */
  const void* data;
  uint32_t bytes;
  tuttiTag tag;
} tuttiMessage;

/* A descriptor to sleep on, for poll(2). */
typedef struct {
  int fd;
  short events;
} tuttiWait;

typedef struct {
  uint32_t abi_version;  /* TUTTI_TRANSPORT_ABI_VERSION */
  uint32_t struct_bytes; /* sizeof(tuttiTransport): later versions append */
  const char* name;      /* as in TUTTI_TRANSPORTS */

  /* Creates an endpoint. Errors: tuttiSystemError, tuttiInvalidUsage (configuration). */
  tuttiResult_t (*endpoint_open)(const tuttiEndpointConfig* config, tuttiEndpoint** endpoint,
                                 tuttiTransportError* error);
  /* Writes the address to `blob` (at most TUTTI_ADDRESS_MAX_BYTES) and returns its length. */
  uint32_t (*endpoint_address)(tuttiEndpoint* endpoint, void* blob);
  /* Non-zero if a peer with this address may be reached. Else `why` (of `why_bytes`) receives the reason. */
  int (*endpoint_reaches)(tuttiEndpoint* endpoint, const void* peer_address, uint32_t address_bytes, char* why,
                          size_t why_bytes);
  /* Starts a link to `config->peer`; link_poll tells when it is ready. */
  tuttiResult_t (*connect)(tuttiEndpoint* endpoint, const tuttiLinkConfig* config, const void* peer_address,
                           uint32_t address_bytes, tuttiLink** link, tuttiTransportError* error);
  /* Takes the next incoming link that is ready (its sender's configuration in *config), or sets *link to NULL.
   * Connections that cannot prove the group key are dropped here without an error. */
  tuttiResult_t (*accept)(tuttiEndpoint* endpoint, tuttiLink** link, tuttiLinkConfig* config,
                          tuttiTransportError* error);
  /* All links must be closed. */
  void (*endpoint_close)(tuttiEndpoint* endpoint);

  /* Moves bytes. tuttiSuccess: the link is ready; tuttiInProgress: still connecting; else it failed. The only place
   * where a failure shows, so call it when the other verbs have nothing. */
  tuttiResult_t (*link_poll)(tuttiLink* link, tuttiTransportError* error);
  /* Sending side. NULL when no slot is free, and until link_poll says that the link is ready. The same slot until
   * publish. `slots` messages at least can be published without the receiver's doing. */
  void* (*try_acquire)(tuttiLink* link);
  void (*publish)(tuttiLink* link, uint32_t bytes, const tuttiTag* tag);
  /* How many published messages still hold this rank up: they need it to call link_poll before they can arrive, or
   * they lend memory and are not released. link_close drops those; the others arrive. */
  uint32_t (*unsent)(tuttiLink* link);
  /* Receiving side. Zero when there is no message. The same message until release. */
  int (*try_peek)(tuttiLink* link, tuttiMessage* message);
  void (*release)(tuttiLink* link);
  /* Before sleeping: fills *wait with what becomes ready when the link can go on, and returns 1; returns 0 if it may go
   * on already, so do not sleep. `for_slot`: waiting for a slot or for unsent messages to leave, else for a message.
   * Sleep for a limited time only while the link is connecting. */
  int (*wait_begin)(tuttiLink* link, int for_slot, tuttiWait* wait);
  /* After waking, for every wait_begin. */
  void (*wait_end)(tuttiLink* link);
  void (*link_close)(tuttiLink* link);

  /* May be NULL. Receiving side, while try_peek has nothing: if the next message is of `bytes`, the link may put it at
   * `to` instead of into a slot. Then the message's data is `to`. `to` must stay until that message was peeked, or
   * recall. */
  void (*expect)(tuttiLink* link, void* to, uint32_t bytes);

  /* What follows may be NULL, all or none: then nothing is lent.
   * Sending side. Publishes a message in the slot that try_acquire gave, whose `bytes` the receiver reads where they
   * lie, or the link sends from there, instead of from the slot. They must stay as they are until unsent() no longer
   * counts the message, or recall. Returns 0 if it cannot be done with this memory: then fill the slot. */
  int (*lend)(tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag* tag);
  /* After a failure, on either side: when it returns nobody reads memory that this side has lent, nor ever will, this
   * side has given back what it had borrowed, and nothing is put where it was expected. The link is of no use then. */
  void (*recall)(tuttiLink* link);
  /* Receiving side, for a lent message: from here to release the sender cannot recall it. *data is where it can be
   * read. Errors: tuttiRemoteError (it was recalled, or cannot be read any more). */
  tuttiResult_t (*borrow)(tuttiLink* link, const void** data, tuttiTransportError* error);

  /* May be NULL: then it stands between shared memory and TCP. Fills *properties, except struct_bytes. */
  void (*endpoint_properties)(tuttiEndpoint* endpoint, tuttiTransportProperties* properties);

  /* May be NULL. Sending side: try_acquire, a copy of `bytes` from `data` into the slot, and publish, at once. Returns
   * 0 if no slot is free; 1 if unsent() has to be asked whether the message holds this rank up; 2 if it does not. */
  int (*push)(tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag* tag);

  /* May be NULL, both or none. Receiving side: the message that comes after `ahead` others, counted from the one that
   * is peeked next, may be put at `to` if it is of `bytes`; then its data is `to`. One at a time: not called again
   * before that message was peeked. `to` and what other memory there is at the same place (the caller may have lent it)
   * must stay, and not be read by anybody who could still see it change, until then, or recall. */
  void (*expect_ahead)(tuttiLink* link, uint32_t ahead, void* to, uint32_t bytes);
  /* Sending side, after try_acquire: where the receiver expects the next message, if it does, it is of `bytes` and that
   * memory can be written from here; else NULL. What publish sends then is what was written there instead of into the
   * slot. try_acquire ends that: nothing was written that counts, and the slot is to be filled. */
  void* (*place)(tuttiLink* link, uint32_t bytes);

  /* What follows may be NULL, all or none: then the transport has no way past the CPU, which is the usual case. It is
   * for registered memory that may be a device's (memory_dmabuf): such bytes go right from where they lie to where they
   * belong, and no slot takes them, so a message may be longer than a slot, up to TUTTI_DELIVERY_MAX_BYTES.
   * Non-zero if the endpoint can move bytes from and to all of this registered memory, which it may keep ready from now
   * on. Else `why` (of `why_bytes`) receives the reason, as from the device. With NULL for `data` the endpoint only
   * gives up what it has kept ready of registrations that have ended. */
  int (*endpoint_registers)(tuttiEndpoint* endpoint, const void* data, uint64_t bytes, char* why, size_t why_bytes);
  /* Receiving side, while try_peek has nothing: the next message, of `bytes` > 0, belongs at `to` and nowhere else. Its
   * data is `to` when it has come. If its sender has another length in mind, then only its tag and that length come,
   * and its data is NULL. `to` must stay until the message was peeked, or recall. Again for the same message is of no
   * effect. Returns 0 if this memory cannot be used. */
  int (*demand)(tuttiLink* link, void* to, uint32_t bytes);
  /* Sending side, in the slot that try_acquire gave. As lend, for a message that the receiver demands. Returns 1 when
   * it is published; 0 while it is not known where the receiver wants it: then wait_begin waits for that, and it is to
   * be called again; -1 if this memory cannot be used. Where the link has failed 1: link_poll has the reason. */
  int (*deliver)(tuttiLink* link, const void* data, uint32_t bytes, const tuttiTag* tag);

  /* May be NULL, whatever those before it are. Receiving side: the data of the message that try_peek has, if it is of
   * `bytes` with this tag. NULL where there is none, or another, or its data are lent. */
  const void* (*match)(tuttiLink* link, uint32_t bytes, const tuttiTag* tag);

  /* May be NULL: then what is registered is lent. Sending side, before a value is computed that is to be sent: non-zero
   * if lend would take these bytes, and that costs less than filling a slot. lend may refuse them all the same. */
  int (*can_lend)(tuttiLink* link, const void* data, uint32_t bytes);

  /* May be NULL. All ranks are known: where `here` is 0 none of the others is on this host, where `elsewhere` is 0 none
   * is on another one. An endpoint may stop to listen where nobody will come from. */
  void (*endpoint_narrow)(tuttiEndpoint* endpoint, int here, int elsewhere);

  /* May be NULL. Sending side: how many segments or packets of this link's were sent again, because the network had
   * lost them or been slow. It never becomes less. */
  uint64_t (*resent)(tuttiLink* link);
} tuttiTransport;

/* What a plugin exports under the name "tuttiTransportPlugin". Called once, before anything else. Returns its table,
 * which stays as it is to the end of the process; or NULL, with a sentence in `why` (of `why_bytes`), if it is of no
 * use on this machine, for example because there is no device. */
typedef const tuttiTransport* (*tuttiTransportPlugin_t)(char* why, size_t why_bytes);

#ifdef __cplusplus
}
#endif
#endif
