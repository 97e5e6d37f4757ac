/* Tutti: collective communication on host memory and CUDA devices. This is the whole C API, with membership.h and
 * types.h, which it includes; it compiles as C99 and as C++.
 *
 * Names and shapes are NCCL's with `nccl` replaced by `tutti`.
 *
 * Threads. All functions may be called from any thread at any time, on any handles, also at once:
 * - Operations on one communicator (with them tuttiCommSplit, tuttiCommCreateGroup and tuttiCommFinalize) run one at a
 *   time in the order in which they were called, whatever the thread and the stream. The order must be the same on all
 *   ranks, so threads that share a communicator have to agree on it. Queries (tuttiCommGetAsyncError, tuttiCommCount,
 *   tuttiCommMemStats, ...), operators and registrations wait for no operation.
 * - tuttiCommDestroy waits for the operations that any thread has called before on this rank, tuttiCommAbort ends them;
 *   both wait for other threads' groups that have collected calls on the communicator. The first thread that destroys
 *   a handle succeeds. Calls on it from then on return tuttiInvalidArgument; a communicator's handle may be used
 *   again after a thousand others were destroyed, a stream's or event's never.
 * - Groups of calls, and tuttiGetLastError(NULL), belong to the thread.
 * - Output arguments and buffers belong to the function until it returns, or until the end of the group.
 * - The environment is read when communicators are created; it may not be changed meanwhile.
 *
 * Order. All ranks of a communicator call the same operations with the same arguments in the same order. If a
 * rank does not, the operation returns tuttiInvalidUsage, and tuttiGetLastError() shows both calls. Ranks that receive
 * nothing (the root of a broadcast) may get the error only in the next operation or in tuttiCommFinalize.
 *
 * Forks. A forked child gets tuttiInvalidUsage from every call on the communicators, streams, events and averagers that
 * it inherited; its parent is not affected: the child does not hold its connections.
 *
 * Errors. Every function returns a tuttiResult_t; tuttiGetLastError() has the sentence that says what happened and what
 * to do. After tuttiSystemError, tuttiRemoteError, tuttiTimeout, tuttiInternalError, or tuttiInvalidUsage from a
 * mismatch between ranks, the communicator is broken: all further operations on it return the same error, and it can
 * only be destroyed. tuttiInvalidArgument leaves it usable: nothing was sent.
 *
 * Streams. With stream NULL an operation runs on the caller's thread and returns when the result is in recvbuff and the
 * rank's own messages have been handed over. With a stream from tuttiStreamCreate it is queued and returns at once.
 *
 * CUDA. With config.cudaDevice a communicator's buffers, and what tuttiScalarDevice points to, are on that device, on
 * all ranks or on none. `stream` is a cudaStream_t then, cast, and NULL is CUDA's default stream. Operations are
 * enqueued in the stream and return; tuttiCommGetAsyncError reports errors later. They can be captured into CUDA
 * graphs, if an operation of their kind and size has run before. Operations of one communicator on several streams keep
 * their order, except for launches of graphs, which the program orders. Ranks that are threads of one process exchange
 * the addresses of their buffers, and one launch serves those that share a device: a call may wait until all of them
 * have called, so a thread that drives several of them has to group the calls, and capture all of their streams
 * together. Splitting and finalizing wait for the device. tuttiCommAbort frees streams that wait for other ranks.
 * Operations of several communicators on one device hold multiprocessors and hardware queues while they wait for other
 * devices, so those that run at the same time have to be called in the same order on all ranks.
 *
 * Non-blocking. With config.blocking = 0 the functions that create a communicator, and tuttiCommFinalize on it, return
 * tuttiInProgress at once, with a valid handle in *comm, and continue in the background. Until it is done
 * tuttiCommGetAsyncError says tuttiInProgress, then tuttiSuccess or the error. Meanwhile only that function,
 * tuttiGetLastError, tuttiCommDestroy and tuttiCommAbort may be called on the communicator, and the last two end what
 * runs in the background; others return tuttiInvalidUsage. A communicator whose creation failed returns that error from
 * all calls, and has to be destroyed. Operations block, or not, as on any other communicator. */
#ifndef TUTTI_TUTTI_H_
#define TUTTI_TUTTI_H_

#include "tutti/membership.h"
#include "tutti/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- library --------------------------------------------------------------------------------------------------- */

/* Writes the library's version, 10000 * major + 100 * minor + patch, to *version. Does not block; any thread.
 * Errors: tuttiInvalidArgument (version is NULL). */
TUTTI_API tuttiResult_t tuttiGetVersion(int* version);

/* A constant English name of `result`, e.g. "remote error". Never NULL, static storage; any thread. */
TUTTI_API const char* tuttiGetErrorString(tuttiResult_t result);

/* The sentence that explains the last error of `comm`, or, with NULL (or a communicator without an error), the last
 * error that a call on this thread returned. "" if there was none. The text belongs to the calling thread and is valid
 * until its next call of a Tutti function. */
TUTTI_API const char* tuttiGetLastError(tuttiComm_t comm);

/* ---- groups ---------------------------------------------------------------------------------------------------- */

/* Makes a new group's meeting point: listens on a free TCP port of this process (a thread answers there until the group
 * has formed or the limit for creation has passed: the ranks' own, TUTTI_INIT_TIMEOUT until the first one has come) and
 * writes its addresses and a fresh random secret to *uniqueId. Call it in one process, which must live until all ranks
 * have joined, and give the bytes to all ranks. Does not block; any thread.
 * Errors: tuttiInvalidArgument (uniqueId is NULL), tuttiInvalidUsage (TUTTI_SOCKET_IFNAME matches nothing; a wrong
 * environment variable), tuttiSystemError (no socket, descriptor or thread is left). */
TUTTI_API tuttiResult_t tuttiGetUniqueId(tuttiUniqueId* uniqueId);

/* Joins the group of `commId` as `rank` of `nranks` and writes the communicator to *comm. Collective: blocks until all
 * ranks have joined and are connected. Connections prove knowledge of the secret to each other by a challenge
 * (HMAC-SHA-512/256, libsodium). May be called from any thread; ranks may be threads of one process.
 * Errors: tuttiInvalidArgument (comm is NULL, nranks < 1, rank not in [0, nranks)), tuttiInvalidUsage (two processes
 * claim one rank, ranks disagree about nranks or the configuration, a wrong environment variable), tuttiTimeout (the
 * limit passed; the message lists the ranks that never came), tuttiRemoteError (a peer failed meanwhile),
 * tuttiSystemError. On error *comm is NULL. */
TUTTI_API tuttiResult_t tuttiCommInitRank(tuttiComm_t* comm, int nranks, tuttiUniqueId commId, int rank);

/* The same with options; config may be NULL. The struct and its strings are copied. With config.blocking = 0 it returns
 * tuttiInProgress, and errors of the creation appear in tuttiCommGetAsyncError.
 * Errors also: tuttiInvalidArgument (config without TUTTI_CONFIG_INITIALIZER, a field out of range), tuttiInvalidUsage
 * (cudaDevice is set, but this library was built without CUDA). */
TUTTI_API tuttiResult_t tuttiCommInitRankConfig(tuttiComm_t* comm, int nranks, tuttiUniqueId commId, int rank,
                                                const tuttiConfig_t* config);

/* The same where several processes made ids, so that not all hosts of a large group call one: commIds has nId of them,
 * the same on all ranks. The group meets at the first one. Each other one serves a share of the ranks: it keeps
 * eight hosts at the first one and sends the hosts that come later to those. If it does not answer within 2 s, its
 * ranks go to the first one, and the log says so. Its thread ends at TUTTI_INIT_TIMEOUT. Errors as
 * tuttiCommInitRankConfig; also tuttiInvalidArgument (nId < 1, commIds is NULL or has bytes that are no id). */
TUTTI_API tuttiResult_t tuttiCommInitRankScalable(tuttiComm_t* newcomm, int nranks, int myrank, int nId,
                                                  tuttiUniqueId* commIds, tuttiConfig_t* config);

/* Creates all `ndev` ranks of a group within this process: comms[i] is rank i, and each rank is used by its own thread.
 * devlist has each rank's CUDA device, as config.cudaDevice; NULL: host memory. Blocks until all of them are created.
 * Errors as tuttiCommInitRankConfig; on error all comms are NULL. */
TUTTI_API tuttiResult_t tuttiCommInitAll(tuttiComm_t* comms, int ndev, const int* devlist);

/* Joins the group that the launcher's environment describes; config may be NULL. Understood, in this order:
 *   TUTTI_RANK, TUTTI_NRANKS, TUTTI_ROOT=host:port   (rank 0 listens there; TUTTI_SECRET is the shared secret)
 *   torchrun: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; with TORCHELASTIC_USE_AGENT_STORE=True the id goes
 *     through the agent's TCPStore, else rank 0 listens on MASTER_PORT
 *   Open MPI's mpirun: PMIx (libpmix is loaded at run time)
 *   MPICH's mpiexec, srun --mpi=pmi2 or pmi: PMI's key-value store
 *   srun --mpi=pmix: PMIx
 *   srun alone: rank 0's host from the node list, and a port from the job id
 * The n-th call in each process forms the n-th group. Where no key-value store carries a random secret, the secret is
 * TUTTI_SECRET or, without it, derived from the job's id: then anyone who can reach the port and guess the id can join.
 * Blocks like tuttiCommInitRank; with config.blocking = 0 only until the id has come from the launcher. Errors as
 * there, and tuttiInvalidUsage when no launcher is recognised or a variable is missing: the message lists what was
 * looked for. */
TUTTI_API tuttiResult_t tuttiCommInitFromEnv(tuttiComm_t* comm, const tuttiConfig_t* config);

/* Writes the number of ranks to *count. Does not block; any thread.
 * Errors: tuttiInvalidArgument (NULL, or not a live communicator), tuttiInvalidUsage (its creation is under way). */
TUTTI_API tuttiResult_t tuttiCommCount(const tuttiComm_t comm, int* count);

/* Writes this communicator's rank to *rank. Does not block; any thread. Errors as tuttiCommCount. */
TUTTI_API tuttiResult_t tuttiCommUserRank(const tuttiComm_t comm, int* rank);

/* Writes the CUDA device of this rank's buffers to *device, -1 where they are in host memory. Does not block; any
 * thread. Errors as tuttiCommCount. */
TUTTI_API tuttiResult_t tuttiCommCuDevice(const tuttiComm_t comm, int* device);

/* Collective: waits until all operations queued on `comm` are done on this rank and every rank has called it, and
 * compares how many operations each rank called. Afterwards only tuttiCommDestroy and tuttiCommAbort are allowed; the
 * process may also end without them. If this is not called tuttiCommDestroy may close connections that a slower peer
 * still needs; that peer would see tuttiRemoteError. With config.blocking = 0 it returns tuttiInProgress.
 * Errors: tuttiInvalidArgument (not a live communicator), tuttiInvalidUsage (the ranks called different operations),
 * tuttiRemoteError, tuttiTimeout, and the error of an operation that failed before. */
TUTTI_API tuttiResult_t tuttiCommFinalize(tuttiComm_t comm);

/* Waits until the operations queued on `comm` are done on this rank, then frees it and everything it owns. Does not
 * wait for the other ranks; see tuttiCommFinalize. A creation or finalization in the background is ended as by
 * tuttiCommAbort. The handle is dead afterwards even if an error is returned. Errors: tuttiInvalidArgument (not a live
 * communicator), and the error that broke it. */
TUTTI_API tuttiResult_t tuttiCommDestroy(tuttiComm_t comm);

/* Ends `comm` at once: an operation that blocks in another thread returns tuttiInvalidUsage, peers get tuttiRemoteError
 * naming this rank. Waits only for this rank's own operations to return and what it has in the background to end, never
 * for a peer, then frees the communicator. A shrink, grow or split of `comm` that waits for other ranks ends, too. If
 * `comm` is being made from another communicator in the background, that ends by itself when its turn there comes. May
 * be called from any thread, also while another is inside an operation on it; that thread must not use `comm`
 * afterwards. Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiCommAbort(tuttiComm_t comm);

/* Writes the state of `comm` to *asyncError: tuttiSuccess, tuttiInProgress while a creation or finalization runs in the
 * background, or the error that broke it, including one that peers reported while no operation ran here. Does not
 * block; any thread. Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiCommGetAsyncError(tuttiComm_t comm, tuttiResult_t* asyncError);

/* Writes what `comm` holds on this rank now to *stats. Does not block, also while operations run; any thread.
 * Errors: tuttiInvalidArgument (stats is NULL or its size too small, not a live communicator), tuttiInvalidUsage (its
 * creation is under way). */
TUTTI_API tuttiResult_t tuttiCommMemStats(tuttiComm_t comm, tuttiCommMemStats_t* stats);

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/* Writes to *ptr `size` bytes of page-aligned, zeroed memory that other processes of this host can map, so that
 * operations on it need not copy it first; it counts as registered with every communicator. A child that this process
 * forks shares it. size 0 gives NULL. Owned by the caller, freed with tuttiMemFree. Any thread. Errors:
 * tuttiInvalidArgument (ptr is NULL), tuttiSystemError (no memory, descriptors exhausted). */
TUTTI_API tuttiResult_t tuttiMemAlloc(void** ptr, size_t size);

/* Frees memory of tuttiMemAlloc; NULL is allowed. Any thread.
 * Errors: tuttiInvalidArgument (ptr is not from tuttiMemAlloc). */
TUTTI_API tuttiResult_t tuttiMemFree(void* ptr);

/* Registers `size` bytes at `buff`, which stay the caller's, and writes a handle for tuttiCommDeregister to *handle.
 * Peers of this host map what is a MAP_SHARED mapping of a memfd or file (its descriptor must be open at this call; the
 * file may not shrink later), so operations on it need not copy it first. Other memory is accepted without effect. On a
 * communicator on CUDA devices memory of cudaMalloc has one where ranks are several processes of a host: a large
 * operation whose buffers are registered on all ranks is done where these lie, and its calls wait until all ranks have
 * called; no graph may use them after they were deregistered. The bytes stay mapped until they are deregistered or the
 * communicator is destroyed, which takes all registrations back. Not collective; does not block; any thread. Errors:
 * tuttiInvalidArgument (handle or buff is NULL, size is 0, not mapped memory, more than one mapping, not a live
 * communicator), tuttiSystemError (no descriptors). */
TUTTI_API tuttiResult_t tuttiCommRegister(const tuttiComm_t comm, void* buff, size_t size, void** handle);

/* Takes a registration back; no operation may use the buffer meanwhile. NULL is allowed. Where other processes have
 * memory of a GPU mapped it waits until they have let go of it, about 0.25 s and at most 2 s, because CUDA forbids to
 * free it before; else it does not block. Any thread. Errors: tuttiInvalidArgument (not a registration of this
 * communicator, not a live communicator). */
TUTTI_API tuttiResult_t tuttiCommDeregister(const tuttiComm_t comm, void* handle);

/* ---- streams --------------------------------------------------------------------------------------------------- */

/* Creates a queue with a thread of its own. Operations on one stream run in the order in which they were called. A
 * communicator runs one operation at a time, in the order of the calls. Any thread.
 * Errors: tuttiInvalidArgument (stream is NULL), tuttiSystemError (no thread can be made). */
TUTTI_API tuttiResult_t tuttiStreamCreate(tuttiStream_t* stream);

/* Blocks until everything queued before is done and returns the first error since the last tuttiStreamSynchronize.
 * Any thread. Errors: tuttiInvalidArgument, and those of the operations. */
TUTTI_API tuttiResult_t tuttiStreamSynchronize(tuttiStream_t stream);

/* tuttiSuccess when everything queued is done, tuttiInProgress when not, or the first operation's error. Does not
 * block; any thread. */
TUTTI_API tuttiResult_t tuttiStreamQuery(tuttiStream_t stream);

/* Waits for what is queued, ends the thread and frees the stream; returns like tuttiStreamSynchronize. Communicators
 * with operations on it must still be alive. */
TUTTI_API tuttiResult_t tuttiStreamDestroy(tuttiStream_t stream);

/* Called on the stream's thread with the first error of the stream's operations so far. It may start operations on
 * other streams; it may not wait for its own, nor end a communicator with operations that are queued there. */
typedef void (*tuttiStreamCallback_t)(tuttiStream_t stream, tuttiResult_t status, void* userData);

/* Calls callback(stream, status, userData) once everything queued before is done. Does not block; any thread. userData
 * stays the caller's. Errors: tuttiInvalidArgument (not a live stream, callback is NULL). */
TUTTI_API tuttiResult_t tuttiStreamAddCallback(tuttiStream_t stream, tuttiStreamCallback_t callback, void* userData);

/* Makes what is queued on `stream` from now on wait until the point that `event` was last recorded at is reached; with
 * stream NULL the caller waits. An event that was never recorded counts as reached. Any thread.
 * Errors: tuttiInvalidArgument (not a live stream or event). */
TUTTI_API tuttiResult_t tuttiStreamWaitEvent(tuttiStream_t stream, tuttiEvent_t event);

/* Creates an event. Any thread; freed with tuttiEventDestroy. Errors: tuttiInvalidArgument (event is NULL). */
TUTTI_API tuttiResult_t tuttiEventCreate(tuttiEvent_t* event);

/* Sets the event to the end of what is queued on `stream` now; with stream NULL it is reached at once. Does not block;
 * any thread. Errors: tuttiInvalidArgument (not a live stream or event). */
TUTTI_API tuttiResult_t tuttiEventRecord(tuttiEvent_t event, tuttiStream_t stream);

/* tuttiSuccess when the stream has reached the event, else tuttiInProgress. Does not block; any thread.
 * Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiEventQuery(tuttiEvent_t event);

/* Blocks until the stream has reached the event. Any thread. Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiEventSynchronize(tuttiEvent_t event);

/* Frees the event; streams that wait for it still wait until it is reached. Any thread. Errors:
 * tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiEventDestroy(tuttiEvent_t event);

/* Algorithms of all-reduce, reduce, broadcast, all-gather and reduce-scatter:
 *
 * ring: a ring, or a pipelined chain where there is a root (Patarasuk and Yuan, "Bandwidth optimal all-reduce
 * algorithms for clusters of workstations", 2009).
 *
 * tree: double binary trees (Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
 * scan", 2009); for all-gather and reduce-scatter the halves of circulant.
 *
 * direct: each part is added up at one rank, which has it from all and gives the sum to all; two hops. A small reduce
 * is added up at the root.
 *
 * oneshot: all-reduce adds everything up at every rank; one hop. The others as direct.
 *
 * linear: all-reduce adds everything up at one rank, which gives the sum to all (a linear reduce and a linear
 * broadcast): two hops and the fewest messages, for small operations of ranks that share CPUs. The others as direct.
 *
 * circulant: a reduce-scatter and an all-gather between ranks whose distances halve and double, in ceil(log2 n)
 * exchanges each for any number of ranks (Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms",
 * 2024; for powers of two that is Rabenseifner's, "Optimization of collective reduction operations", 2004, whose name
 * is understood as well). The others as tree.
 *
 * doubling: all-reduce by recursive doubling, which exchanges whole sums (Thakur, Rabenseifner, Gropp, "Optimization of
 * collective communication operations in MPICH", 2005): for small operations where messages are expensive. The others
 * as tree.
 *
 * hierarchical: all-reduce on each host, between hosts for each rank of a host with its counterparts on the others,
 * and on each host again (Cho et al., "BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network
 * hierarchy", 2019). The others as ring.
 *
 * racks: the same with racks in place of hosts, as far as a file describes them (TUTTI_TUNE_FILE). The others as ring.
 *
 * chain: sums go from rank 0 to the next and so on, as the order of ranks wants it, and the result back (a pipelined
 * chain: Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and experience",
 * 2007). Each rank has links with two others, whose number grows with no size of the group; small operations take two
 * hops for every rank. Also where several ranks stand on each of a few hosts, one host after the other: then each host
 * sends a sum once. The others as ring.
 *
 * Rings and trees list the ranks rack by rack, host by host, and on a host as they share caches and NUMA nodes
 * (TUTTI_ORDER); what is added up goes along ranks as they are numbered there. A host with less than half of the median
 * host's speed stands at the ends of trees.
 * Sums that have to be made in the order of ranks (of 16- and 8-bit floats, or in deterministic communicators) take
 * direct, oneshot or linear, and of more than 16 ranks (64 where all share memory) chain, instead of ring, tree,
 * circulant, doubling, hierarchical and racks. 16- and 8-bit floats travel along a chain as floats, in pieces that
 * take 32 MiB of memory, and are rounded once, at the end: the bits are those that one place would give.
 *
 * Reproducible sums. The result of a reduction of floats has the same bits on all ranks and in every run. It depends on
 * the inputs, the count, datatype and op, the collective, the number of ranks, and their layout: which of them share a
 * host, whether they share memory there, how many CPUs the hosts have, and how fast their network is. It does not
 * depend on timing or load, on earlier operations, on the CPUs that ranks are bound to, on registration, streams, in
 * place or not, nor on TUTTI_SLOTS and TUTTI_SLOT_BYTES. What changes the algorithm may change the bits: TUTTI_ALGO,
 * TUTTI_ORDER, TUTTI_TRANSPORTS, a tuning file, another version of the library. Where up to 16 ranks share memory the
 * order of the sum is that of ranks; elsewhere it is another fixed one. With two ranks there is only one. With
 * config.deterministic the order is that of ranks everywhere, so the bits do not depend on layout, transport and
 * algorithm either. On CUDA devices the order is that of ranks unless a ring or tree is forced, whose order depends on
 * the device, too. */

/* Writes to `text`, which has room for *bytes bytes, how `comm` carries out `collective`, the name of one of the
 * functions below ("tuttiAllReduce"), with `count`, `datatype` and `op` (ignored if it has none) now, and
 * why: for each algorithm that gives the promised result the predicted time; what is forced; what is known of the
 * group, the prices and where they come from; what the links are. English lines for people, ended by a zero byte; cut
 * where the room ends. *bytes becomes what the whole text takes with that byte; with *bytes 0 `text` may be NULL. Not
 * collective; waits for the operations that were called on `comm` before; any thread.
 *
 * The prediction is a sum of hops, messages, bytes moved and bytes added up, each at a price (after Hockney, "The
 * communication challenge for MPP", 1994, and Thakur, Rabenseifner, Gropp, "Optimization of collective communication
 * operations in MPICH", 2005). The prices are built in, or those of a tuning file (TUTTI_TUNE_FILE), which tutti-tune
 * writes; nothing is measured while operations run.
 * Errors: tuttiInvalidArgument (not the name of a collective, bytes is NULL, text is NULL with *bytes > 0, datatype or
 * op out of range, count * size over 2^63, not a live communicator), tuttiInvalidUsage (comm's creation is under way).
 */
TUTTI_API tuttiResult_t tuttiExplain(const char* collective, size_t count, tuttiDataType_t datatype, tuttiRedOp_t op,
                                     tuttiComm_t comm, char* text, size_t* bytes);

/* ---- collectives ----------------------------------------------------------------------------------------------- */

/* recvbuff on every rank = `op` over all ranks' sendbuff, element by element; `count` elements of `datatype` each. In
 * place when sendbuff == recvbuff; otherwise the two may not overlap. Any alignment; count may be 0 (then the buffers
 * may be NULL and the call only keeps the order). All ranks get bit-identical results. Blocks (stream NULL)
 * until the result is there, at most as long as the peers make progress (opTimeoutSeconds). Buffers belong to the call
 * until it, or the stream's turn, is over. Errors: tuttiInvalidArgument (NULL buffer with count > 0, datatype or op out
 * of range, op made for another type or communicator, count * size over 2^63, overlapping buffers, not a live
 * communicator), tuttiInvalidUsage (ranks called different things; finalized), tuttiRemoteError (a peer died or
 * aborted), tuttiTimeout, tuttiSystemError. */
TUTTI_API tuttiResult_t tuttiAllReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                       tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream);

/* tuttiAllReduce for slow networks: messages carry one byte per element. recvbuff on every rank = about `op` over all
 * ranks' sendbuff, with the same bits on all ranks and in every run. datatype: tuttiFloat32; op: tuttiSum or tuttiAvg.
 * Elements travel in blocks of block_elems (64, 128, 192 or 256), each behind a float, its scale, as wiretype:
 * tuttiInt8 or tuttiFloat8e4m3. A rank adds its part of the blocks in float, in the order of ranks, and quantises the
 * sums. With A(r) the largest magnitude of rank r's elements in a block, the error of a sum is at most all A(r) /
 * 126 (tuttiInt8) or / 13.5 (tuttiFloat8e4m3), added up, plus nranks * 2^-100; of an average that divided by nranks.
 * A block in which some rank has a NaN, an infinity or more than 2^127, or a sum is more, becomes NaNs. A lone rank's
 * result is exact. Keeps two buffers of count bytes and the scales until `comm` ends.
 *
 * Error feedback: errorbuff is NULL, or has `count` floats of this rank's, zeros before the first call, which may not
 * overlap the other two. They are added to sendbuff's, and become what rounding took from this rank's part of the
 * result: the sum of the results of all calls with one errorbuff differs from the exact one by no more than a single
 * result does. Where that is not finite it is 0. Its contents are undefined after an error, and untouched by a lone
 * rank. Ranks need not agree on it.
 *
 * Algorithm: two-shot (reduce-scatter, then all-gather, each by an exchange with every rank), with blocks scaled by
 * their largest magnitude as in QSGD (Alistarh et al., 2017), but rounded to the nearest; error feedback after Seide et
 * al., "1-bit stochastic gradient descent", 2014. On a GPU's communicator all buffers are on the GPU, which quantises
 * what goes to other ranks and makes floats of the sums; the blocks travel through host memory, where each rank adds
 * its part. In place, alignment, blocking, ownership and errors as tuttiAllReduce; also tuttiInvalidArgument (another
 * datatype, op, wiretype or block_elems; errorbuff overlaps), tuttiInvalidUsage (ranks' wiretype or block_elems
 * differ). */
TUTTI_API tuttiResult_t tuttiAllReduceQuantized(const void* sendbuff, void* recvbuff, size_t count,
                                                tuttiDataType_t datatype, tuttiRedOp_t op, tuttiDataType_t wiretype,
                                                size_t block_elems, void* errorbuff, tuttiComm_t comm,
                                                tuttiStream_t stream);

/* recvbuff on every rank = sendbuff of rank `root`. sendbuff is read on the root only and may be NULL elsewhere. In
 * place on the root when sendbuff == recvbuff. The root returns once its messages are handed over, which may be before
 * the others have them. Blocking, ownership and
 * errors as tuttiAllReduce; also tuttiInvalidArgument (root not in [0, nranks)). */
TUTTI_API tuttiResult_t tuttiBroadcast(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                       int root, tuttiComm_t comm, tuttiStream_t stream);

/* tuttiBroadcast with sendbuff == recvbuff == buff. */
TUTTI_API tuttiResult_t tuttiBcast(void* buff, size_t count, tuttiDataType_t datatype, int root, tuttiComm_t comm,
                                   tuttiStream_t stream);

/* recvbuff on rank `root` = `op` over all ranks' sendbuff; `count` elements each. recvbuff is written on the root only
 * and may be NULL elsewhere. In place on the root when sendbuff == recvbuff. Blocking, ownership and errors as
 * tuttiAllReduce; also tuttiInvalidArgument (root not in [0, nranks)). */
TUTTI_API tuttiResult_t tuttiReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                    tuttiRedOp_t op, int root, tuttiComm_t comm, tuttiStream_t stream);

/* recvbuff on every rank = the ranks' sendbuffs one after the other in rank order: nranks * sendcount elements. In
 * place when sendbuff == recvbuff + rank * sendcount. Blocking, ownership and errors as
 * tuttiAllReduce. */
TUTTI_API tuttiResult_t tuttiAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, tuttiDataType_t datatype,
                                       tuttiComm_t comm, tuttiStream_t stream);

/* recvbuff on rank r = block r of `op` over all ranks' sendbuff, which have nranks blocks of recvcount elements. In
 * place when recvbuff == sendbuff + rank * recvcount. Blocking, ownership and errors as
 * tuttiAllReduce. */
TUTTI_API tuttiResult_t tuttiReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                           tuttiDataType_t datatype, tuttiRedOp_t op, tuttiComm_t comm,
                                           tuttiStream_t stream);

/* Block s of recvbuff on rank r = block r of sendbuff on rank s, for all s and r; blocks of `count` elements. In place
 * with one rank only. Algorithm: pairwise exchange. Blocking, ownership and errors as tuttiAllReduce. */
TUTTI_API tuttiResult_t tuttiAlltoAll(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                      tuttiComm_t comm, tuttiStream_t stream);

/* recvbuff on rank `root` = the ranks' sendbuffs one after the other: nranks * count elements; it may be NULL
 * elsewhere. In place on the root when sendbuff == recvbuff + rank * count. Every rank sends to the root directly.
 * Blocking, ownership and errors as tuttiReduce. */
TUTTI_API tuttiResult_t tuttiGather(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                    int root, tuttiComm_t comm, tuttiStream_t stream);

/* recvbuff on rank r = block r of the root's sendbuff, which has nranks blocks of `count` elements and may be NULL
 * elsewhere. In place on the root when recvbuff == sendbuff + rank * count. The root sends to every rank directly.
 * Blocking, ownership and errors as tuttiBroadcast. */
TUTTI_API tuttiResult_t tuttiScatter(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                     int root, tuttiComm_t comm, tuttiStream_t stream);

/* tuttiAllGather with recvcounts[r] elements from rank r, placed at recvbuff + displs[r] elements. All ranks give the
 * same recvcounts, displs are each rank's own; both arrays have nranks entries and are copied. In place when sendbuff
 * == recvbuff + displs[rank]. Algorithm, blocking and errors as tuttiAllGather; also tuttiInvalidArgument (recvcounts
 * or displs is NULL, the blocks overlap). */
TUTTI_API tuttiResult_t tuttiAllGatherv(const void* sendbuff, void* recvbuff, const size_t* recvcounts,
                                        const size_t* displs, tuttiDataType_t datatype, tuttiComm_t comm,
                                        tuttiStream_t stream);

/* tuttiReduceScatter with recvcounts[r] elements for rank r; the blocks of sendbuff follow each other. All ranks give
 * the same recvcounts, which has nranks entries and is copied. In place when recvbuff is this rank's block of sendbuff.
 * Algorithm, blocking and errors as tuttiReduceScatter; also tuttiInvalidArgument (recvcounts is NULL). */
TUTTI_API tuttiResult_t tuttiReduceScatterv(const void* sendbuff, void* recvbuff, const size_t* recvcounts,
                                            tuttiDataType_t datatype, tuttiRedOp_t op, tuttiComm_t comm,
                                            tuttiStream_t stream);

/* tuttiAlltoAll with blocks of any size: sendcounts[r] elements at sendbuff + sdispls[r] go to rank r, which expects as
 * many at its recvbuff + rdispls[...]. The arrays have nranks entries and are copied. Never in place. It is a group of
 * tuttiSend and tuttiRecv, and its errors are theirs; also tuttiInvalidArgument (an array is NULL; a block of recvbuff
 * overlaps another one or a block of sendbuff). */
TUTTI_API tuttiResult_t tuttiAlltoAllv(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls,
                                       void* recvbuff, const size_t* recvcounts, const size_t* rdispls,
                                       tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream);

/* Returns (or the stream goes on) when every rank has called it. Algorithm: dissemination (Hensgen, Finkel, Manber,
 * "Two algorithms for barrier synchronization", 1988). Errors: tuttiInvalidArgument (not a live communicator or
 * stream), tuttiInvalidUsage, tuttiRemoteError, tuttiTimeout, tuttiSystemError. */
TUTTI_API tuttiResult_t tuttiBarrier(tuttiComm_t comm, tuttiStream_t stream);

/* Sends `count` elements to rank `peer`, which calls tuttiRecv with the same count and datatype. Messages between two
 * ranks keep their order. Outside of a group it returns when the message is handed over; for all but small messages,
 * and for the first one to a rank, that needs the receiver to have called tuttiRecv. A rank that sends to itself, or
 * exchanges messages with a peer, has to group the calls. Point to point does not count as an operation that all ranks
 * have to call. Blocking, ownership and errors as tuttiAllReduce; also tuttiInvalidArgument (peer not in [0, nranks)),
 * and tuttiInvalidUsage (the receiver expects something else). */
TUTTI_API tuttiResult_t tuttiSend(const void* sendbuff, size_t count, tuttiDataType_t datatype, int peer,
                                  tuttiComm_t comm, tuttiStream_t stream);

/* Receives what rank `peer` sends with tuttiSend. Returns when it is in recvbuff. Otherwise as tuttiSend. */
TUTTI_API tuttiResult_t tuttiRecv(void* recvbuff, size_t count, tuttiDataType_t datatype, int peer, tuttiComm_t comm,
                                  tuttiStream_t stream);

/* ---- operators ------------------------------------------------------------------------------------------------- */

/* Writes to *op an operator that multiplies each rank's input by that rank's `scalar`, one element of `datatype`, and
 * sums the products. It may be used wherever tuttiSum may, in operations of `comm` on elements of `datatype`. It is not
 * collective, and the ranks' scalars may differ. tuttiScalarHostImmediate: the scalar is copied now. tuttiScalarDevice:
 * `scalar` stays the caller's and is read while an operation runs, also one that waits on a stream. Products are
 * rounded to `datatype` before they are summed; those of integers wrap around. Does not block; any thread. Owned by
 * `comm`: freed by tuttiRedOpDestroy or with it. Errors: tuttiInvalidArgument (op or scalar is NULL, datatype or
 * residence out of range, not a live communicator). */
TUTTI_API tuttiResult_t tuttiRedOpCreatePreMulSum(tuttiRedOp_t* op, void* scalar, tuttiDataType_t datatype,
                                                  tuttiScalarResidence_t residence, tuttiComm_t comm);

/* Frees an operator of tuttiRedOpCreatePreMulSum. Operations that were called with it before are not disturbed. Does
 * not block; any thread. Errors: tuttiInvalidArgument (op is built in, of another communicator or destroyed; not a live
 * communicator). */
TUTTI_API tuttiResult_t tuttiRedOpDestroy(tuttiRedOp_t op, tuttiComm_t comm);

/* ---- groups of calls ------------------------------------------------------------------------------------------- */

/* From here to tuttiGroupEnd the operations that this thread calls are only checked and collected; so are
 * the functions that create a communicator, but tuttiCommInitAll, and tuttiCommFinalize, which begin at once where they
 * go on in the background. Groups nest; the outermost end counts. Does not block; per thread. Errors: none. */
TUTTI_API tuttiResult_t tuttiGroupStart(void);

/* Runs what was collected: first the creations and finalizations, side by side, but those from one communicator in the
 * order of calls; then the operations. All sends and receives of one communicator and stream run together, so their
 * order does not matter. Operations of one communicator keep their order; several communicators run side by side, so
 * one thread may hold several ranks of a group. Operations with a stream are queued there, and the rest is done when
 * this returns; tuttiInProgress says that something goes on in the background. If a call in the group was refused,
 * nothing is run, and its error is returned again. Errors: tuttiInvalidUsage (no tuttiGroupStart; messages to oneself
 * that do not match), and those of the operations: the first one. */
TUTTI_API tuttiResult_t tuttiGroupEnd(void);

/* Ends a group as tuttiGroupEnd does, but runs nothing of it, and writes how long it would take to
 * simInfo->estimatedTime: the predictions, or measurements, that tuttiExplain tells of, added up for each communicator,
 * and of several communicators, which run side by side, the longest. Ranks need not simulate alike. In a nested group
 * it leaves *simInfo as it is. Waits for the operations that were called before on these communicators; per thread.
 * Errors: tuttiInvalidArgument (simInfo is NULL or not from TUTTI_SIM_INFO_INITIALIZER), tuttiInvalidUsage (no
 * tuttiGroupStart; the group creates or finalizes communicators, which has no estimate), and the error of a call that
 * was refused in the group. */
TUTTI_API tuttiResult_t tuttiGroupSimulateEnd(tuttiSimInfo_t* simInfo);

#ifdef __cplusplus
}
#endif
#endif
