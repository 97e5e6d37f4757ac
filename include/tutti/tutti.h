/* Tutti: collective communication on host memory and CUDA devices. This header, with membership.h and types.h, which it
 * includes, is the core C API; trace.h (why a job hangs or is slow) and ddp.h (data-parallel training) add to it. C99
 * and C++.
 *
 * Where NCCL has a function, its name and arguments are NCCL's with `nccl` replaced by `tutti`, but a stream is a
 * tuttiStream_t, and tuttiCommMemStats fills a struct. Windows, one-sided operations and configs of calls are missing.
 *
 * Threads. All functions may be called from any thread at any time, on any handles, also concurrently:
 * - Operations on one communicator (including tuttiCommSplit, tuttiCommCreateGroup and tuttiCommFinalize) run one at a
 *   time, in the order in which they were called, whatever the thread and the stream. The order must be the same on all
 *   ranks, so threads that share a communicator must agree on it. Queries (tuttiCommGetAsyncError, tuttiCommCount,
 *   tuttiCommMemStats, ...), operators and registrations do not wait for operations.
 * - tuttiCommDestroy waits for the operations called before on this rank, by any thread; tuttiCommAbort ends them. Both
 *   wait for other threads' groups that have collected calls on the communicator. The first thread that destroys a
 *   handle succeeds; from then on calls on it return tuttiInvalidArgument. The value of a communicator's handle may be
 *   reused after a thousand others were destroyed, that of a stream's or event's never.
 * - Groups of calls, and tuttiGetLastError(NULL), are per thread.
 * - Output arguments and buffers belong to the function until it returns, or until the end of the group.
 * - The environment is read when communicators are created (TUTTI_LOG, TUTTI_LOG_FILE and TUTTI_CPU_ISA at the first
 *   one) and when ranks connect, which operations may do as well: do not change it while a communicator exists.
 *
 * Order. All ranks of a communicator must call the same operations with the same arguments in the same order. If a rank
 * does not, the operation returns tuttiInvalidUsage, and tuttiGetLastError() shows both calls. Ranks that receive
 * nothing (the root of a broadcast) may get the error only in the next operation or in tuttiCommFinalize.
 *
 * Forks. In a forked child, every call on a communicator, stream, event or averager (ddp.h) that it inherited returns
 * tuttiInvalidUsage. The parent is not affected: the child does not hold its connections.
 *
 * Errors. Every function returns a tuttiResult_t; tuttiGetLastError() says what happened and what to do. After an
 * operation's tuttiSystemError, tuttiRemoteError, tuttiTimeout, tuttiInternalError, tuttiUnhandledCudaError, or
 * tuttiInvalidUsage from a mismatch between ranks, the communicator is broken: all further operations return the same
 * error; it can only be shrunk or destroyed. tuttiInvalidArgument leaves it usable: nothing was sent.
 *
 * Streams. With stream NULL an operation runs on the caller's thread and returns when the result is in recvbuff and the
 * rank's own messages have been handed over. With a stream from tuttiStreamCreate it is queued and returns at once.
 *
 * CUDA. With config.cudaDevice a communicator's buffers, and scalars passed as tuttiScalarDevice, are on that device;
 * either all ranks set it or none. `stream` is then a cudaStream_t, cast, and NULL is CUDA's default stream. Operations
 * are enqueued in the stream and return; tuttiCommGetAsyncError reports errors later. They can be captured into CUDA
 * graphs once an operation of the same kind and size has run. Operations of one communicator on several streams keep
 * their order, except for launches of graphs, which the program must order. Ranks that are threads of one process
 * exchange the addresses of their buffers, and one launch serves all ranks that share a device: a call may wait until
 * all of them have called, so a thread that drives several ranks must group their calls, and capture all of their
 * streams together. Splitting and finalizing wait for the device. tuttiCommAbort frees streams that wait for other
 * ranks. Operations of several communicators on one device hold multiprocessors and hardware queues while they wait for
 * other devices, so those that run at the same time must be called in the same order on all ranks.
 *
 * Non-blocking. With config.blocking = 0 the functions that create a communicator, and tuttiCommFinalize on it, return
 * tuttiInProgress at once, with a valid handle in *comm, and continue in the background. Until that is done
 * tuttiCommGetAsyncError reports tuttiInProgress, then tuttiSuccess or the error. Meanwhile only that function,
 * tuttiGetLastError, tuttiCommDestroy and tuttiCommAbort may be called on the communicator, and the last two cancel the
 * background work; other calls return tuttiInvalidUsage. If the creation failed, all calls return its error, and the
 * communicator must be destroyed. Operations block, or do not, as on any other communicator. */
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

/* The sentence that explains the last error of `comm`; with NULL, or if `comm` has no error, the last error that a call
 * on this thread returned; "" if there was none. The text is the calling thread's, until it calls Tutti again. */
TUTTI_API const char* tuttiGetLastError(tuttiComm_t comm);

/* ---- groups ---------------------------------------------------------------------------------------------------- */

/* Makes the meeting point of a new group: listens on a free TCP port of this process, and writes its addresses and a
 * fresh random secret to *uniqueId. A thread serves the port until the group has formed or a limit has passed (an hour,
 * or TUTTI_INIT_TIMEOUT if longer, until the first rank has come; then the ranks' own limit). Call it in one process,
 * which must live until all ranks have joined, and pass the bytes to all ranks. Does not block; any thread.
 * Errors: tuttiInvalidArgument (uniqueId is NULL), tuttiInvalidUsage (TUTTI_SOCKET_IFNAME matches nothing; an invalid
 * environment variable), tuttiSystemError (no socket, descriptor or thread is left). */
TUTTI_API tuttiResult_t tuttiGetUniqueId(tuttiUniqueId* uniqueId);

/* Joins the group of `commId` as `rank` of `nranks` and writes the communicator to *comm. Collective: blocks until all
 * ranks have joined and are connected. The two ends of each connection prove to each other that they know the secret,
 * by challenge and response (HMAC-SHA-512/256, libsodium). May be called from any thread; ranks may be threads of one
 * process.
 * Errors: tuttiInvalidArgument (comm is NULL, nranks not in [1, 1048576], rank not in [0, nranks), commId is no id),
 * tuttiInvalidUsage (two processes claim one rank, ranks disagree about nranks or the configuration, an invalid
 * environment variable), tuttiTimeout (the limit passed; the message lists the ranks that never came), tuttiRemoteError
 * (a peer failed meanwhile), tuttiSystemError. On error *comm is NULL. */
TUTTI_API tuttiResult_t tuttiCommInitRank(tuttiComm_t* comm, int nranks, tuttiUniqueId commId, int rank);

/* tuttiCommInitRank with options; config may be NULL. The struct and its strings are copied. With config.blocking = 0
 * it returns tuttiInProgress, and tuttiCommGetAsyncError reports errors of the creation. Further errors:
 * tuttiInvalidArgument (config without TUTTI_CONFIG_INITIALIZER, a field out of range), tuttiInvalidUsage (cudaDevice
 * is set, but this library was built without CUDA, or has no such device), tuttiUnhandledCudaError (CUDA failed). */
TUTTI_API tuttiResult_t tuttiCommInitRankConfig(tuttiComm_t* comm, int nranks, tuttiUniqueId commId, int rank,
                                                const tuttiConfig_t* config);

/* tuttiCommInitRankConfig with ids from several processes, so that not all hosts of a large group connect to one
 * process: commIds has nId ids, the same on all ranks. The group meets at the first id. Each other id serves a share of
 * the ranks: eight hosts of the share connect to the first id, and hosts that come later are sent to earlier hosts. If
 * an id does not answer within 2 s, its ranks go to the first one, and the log says so. Its thread ends when
 * TUTTI_INIT_TIMEOUT has passed since its first rank. Errors as tuttiCommInitRankConfig; also tuttiInvalidArgument
 * (nId < 1, commIds is NULL or has bytes that are no id). */
TUTTI_API tuttiResult_t tuttiCommInitRankScalable(tuttiComm_t* newcomm, int nranks, int myrank, int nId,
                                                  tuttiUniqueId* commIds, tuttiConfig_t* config);

/* Creates all `ndev` ranks of a group within this process: comms[i] is rank i, to be used by a thread of its own.
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
 * The n-th call in each process joins the n-th group. Once a launcher is recognised failed calls count, and name n.
 * Where no store carries a random secret, it is TUTTI_SECRET or derived from the job's id: then anyone who can reach
 * the port and guess the id can join. Blocks like tuttiCommInitRank; with config.blocking = 0 only until rank 0 or the
 * store has answered. Errors as tuttiCommInitRankConfig; also tuttiInvalidUsage (no launcher is recognised, or a
 * variable is missing: the message lists what was looked for). */
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
 * compares how many operations each rank called. Afterwards only tuttiCommDestroy and tuttiCommAbort are allowed, or
 * the process may simply end. Without tuttiCommFinalize, tuttiCommDestroy may close connections that a slower peer
 * still needs; that peer would get tuttiRemoteError. With config.blocking = 0 it returns tuttiInProgress.
 * Errors: tuttiInvalidArgument (not a live communicator), tuttiInvalidUsage (the ranks called different operations),
 * tuttiRemoteError, tuttiTimeout, and the error of an operation that failed before. */
TUTTI_API tuttiResult_t tuttiCommFinalize(tuttiComm_t comm);

/* Waits until the operations queued on `comm` are done on this rank, then frees it and everything it owns. Does not
 * wait for the other ranks (see tuttiCommFinalize), except for registered GPU memory, as tuttiCommDeregister. A
 * creation or finalization in the background is cancelled as by tuttiCommAbort. The handle is dead afterwards even if
 * an error is returned. Errors: tuttiInvalidArgument (not a live communicator), and the error that broke it. */
TUTTI_API tuttiResult_t tuttiCommDestroy(tuttiComm_t comm);

/* Ends `comm` at once: an operation that blocks in another thread returns tuttiInvalidUsage, and peers get
 * tuttiRemoteError naming this rank. Waits only until this rank's own operations have returned and its background work
 * has ended, never for a peer, then frees the communicator. A shrink, grow or split of `comm` that waits for other
 * ranks is ended, too. A background creation of `comm` from another communicator is not waited for: it ends when its
 * turn on that communicator comes. May be called from any thread, even while another is inside an operation on `comm`;
 * that thread must not use `comm` afterwards. Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiCommAbort(tuttiComm_t comm);

/* Writes the state of `comm` to *asyncError: tuttiSuccess, tuttiInProgress while a creation or finalization runs in the
 * background, or the error that broke it, including one that peers reported while no operation ran here. Does not
 * block; any thread. Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiCommGetAsyncError(tuttiComm_t comm, tuttiResult_t* asyncError);

/* Writes what `comm` holds on this rank at present to *stats. Does not block, even while operations run; any thread.
 * Errors: tuttiInvalidArgument (stats is NULL or its size too small, not a live communicator), tuttiInvalidUsage (its
 * creation is under way). */
TUTTI_API tuttiResult_t tuttiCommMemStats(tuttiComm_t comm, tuttiCommMemStats_t* stats);

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/* Allocates `size` bytes of page-aligned, zeroed memory that other processes of this host can map, so that operations
 * on it need not copy it first, and writes its address to *ptr (NULL for size 0). It counts as registered with every
 * communicator. A child that this process forks shares it. Owned by the caller, freed with tuttiMemFree. Any thread.
 * Errors: tuttiInvalidArgument (ptr is NULL), tuttiSystemError (no memory, descriptors exhausted). */
TUTTI_API tuttiResult_t tuttiMemAlloc(void** ptr, size_t size);

/* Frees memory of tuttiMemAlloc; NULL is allowed. Any thread.
 * Errors: tuttiInvalidArgument (ptr is not from tuttiMemAlloc). */
TUTTI_API tuttiResult_t tuttiMemFree(void* ptr);

/* Registers `size` bytes at `buff`, which remain the caller's, and writes a handle for tuttiCommDeregister to *handle.
 * A MAP_SHARED mapping of a memfd or file is mapped by the peers of this host, so that operations on it need not copy
 * it first (its descriptor must be open during this call; the file must not shrink later). Other memory is accepted,
 * but helps only network devices that access it directly. On CUDA devices, registering memory of cudaMalloc helps if
 * ranks are several processes of one host: a large operation whose buffers are registered on all ranks works on them in
 * place, and its calls wait until all ranks have called; no CUDA graph may use them once deregistered. The bytes stay
 * mapped until they are deregistered or the communicator is destroyed, which takes all registrations back. Not
 * collective; does not block; any thread. Errors: tuttiInvalidArgument (handle or buff is NULL, size is 0, not mapped
 * memory, more than one mapping, not a live communicator), tuttiSystemError (no descriptors). */
TUTTI_API tuttiResult_t tuttiCommRegister(const tuttiComm_t comm, void* buff, size_t size, void** handle);

/* Takes a registration back; no operation may use the buffer meanwhile. NULL is allowed. If other processes have mapped
 * the buffer and it is GPU memory, waits until they have unmapped it, because CUDA forbids freeing it before: 0.25 s,
 * at most 2 s; those with captured operations do so only as they deregister something. Otherwise does not block. Any
 * thread. Errors: tuttiInvalidArgument (not a registration of this communicator, not a live communicator). */
TUTTI_API tuttiResult_t tuttiCommDeregister(const tuttiComm_t comm, void* handle);

/* ---- streams --------------------------------------------------------------------------------------------------- */

/* Creates a stream: a queue of operations, run in order by a thread of its own. A communicator runs one operation at a
 * time, even on several streams, in the order of the calls. Two ranks of a group need two streams: one may wait for the
 * other. Any thread. Errors: tuttiInvalidArgument (stream is NULL), tuttiSystemError (no thread can be created). */
TUTTI_API tuttiResult_t tuttiStreamCreate(tuttiStream_t* stream);

/* Blocks until everything queued before is done, and returns the first error since the last tuttiStreamSynchronize. Any
 * thread. Errors: tuttiInvalidArgument, and those of the operations. */
TUTTI_API tuttiResult_t tuttiStreamSynchronize(tuttiStream_t stream);

/* tuttiSuccess when everything queued is done, tuttiInProgress when not, or the first error of an operation since the
 * last tuttiStreamSynchronize. Does not block; any thread. Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiStreamQuery(tuttiStream_t stream);

/* Waits for the queued operations, ends the thread and frees the stream; returns like tuttiStreamSynchronize.
 * Communicators with operations on it must still be alive. */
TUTTI_API tuttiResult_t tuttiStreamDestroy(tuttiStream_t stream);

/* Called on the stream's thread, which takes no signals, with its first error since tuttiStreamSynchronize. May start
 * operations on other streams, but not wait for its own nor end a communicator that has operations queued there. */
typedef void (*tuttiStreamCallback_t)(tuttiStream_t stream, tuttiResult_t status, void* userData);

/* Calls callback(stream, status, userData) once everything queued before is done. Does not block; any thread. userData
 * stays the caller's. Errors: tuttiInvalidArgument (not a live stream, callback is NULL). */
TUTTI_API tuttiResult_t tuttiStreamAddCallback(tuttiStream_t stream, tuttiStreamCallback_t callback, void* userData);

/* Makes everything queued on `stream` from now on wait until the stream in which `event` was last recorded reaches that
 * point; with stream NULL the caller waits. An event that was never recorded counts as reached. Any thread. Errors:
 * tuttiInvalidArgument (not a live stream or event). */
TUTTI_API tuttiResult_t tuttiStreamWaitEvent(tuttiStream_t stream, tuttiEvent_t event);

/* Creates an event. Any thread; freed with tuttiEventDestroy. Errors: tuttiInvalidArgument (event is NULL). */
TUTTI_API tuttiResult_t tuttiEventCreate(tuttiEvent_t* event);

/* Records the event behind everything now queued on `stream`; with stream NULL it is reached at once. Does not block;
 * any thread. Errors: tuttiInvalidArgument (not a live stream or event). */
TUTTI_API tuttiResult_t tuttiEventRecord(tuttiEvent_t event, tuttiStream_t stream);

/* tuttiSuccess when the stream has reached the event, else tuttiInProgress. Does not block; any thread.
 * Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiEventQuery(tuttiEvent_t event);

/* Blocks until the stream has reached the event. Any thread. Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiEventSynchronize(tuttiEvent_t event);

/* Frees the event; streams that wait for it go on doing so. Any thread. Errors: tuttiInvalidArgument. */
TUTTI_API tuttiResult_t tuttiEventDestroy(tuttiEvent_t event);

/* Algorithms of all-reduce, reduce, broadcast, all-gather and reduce-scatter:
 *
 * ring: a ring, or a pipelined chain where there is a root (Patarasuk and Yuan, "Bandwidth optimal all-reduce
 * algorithms for clusters of workstations", 2009).
 *
 * tree: double binary trees (Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
 * scan", 2009); for all-gather and reduce-scatter the corresponding half of circulant.
 *
 * direct: each part of the data is summed at one rank, which receives it from all ranks and sends the sum to all; two
 * hops. A small reduce is summed at the root.
 *
 * oneshot: for all-reduce, every rank receives everything and sums it itself; one hop. The others as direct.
 *
 * linear: for all-reduce, one rank sums everything and sends the result to all (a linear reduce and a linear
 * broadcast): two hops and the fewest messages, for small operations of ranks that share CPUs. The others as direct.
 *
 * circulant: a reduce-scatter and an all-gather between ranks whose distances halve and double, in ceil(log2 n)
 * exchanges each for any number of ranks (Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms",
 * 2024; for powers of two this is Rabenseifner's, "Optimization of collective reduction operations", 2004, and
 * "rabenseifner" is accepted as its name). The others as tree.
 *
 * doubling: all-reduce by recursive doubling, which exchanges whole sums (Thakur, Rabenseifner, Gropp, "Optimization of
 * collective communication operations in MPICH", 2005): for small operations where messages are expensive. The others
 * as tree.
 *
 * hierarchical: all-reduce within each host, then between hosts, each rank with its counterparts on the other hosts,
 * then within each host again (Cho et al., "BlueConnect: Decomposing all-reduce for deep learning on heterogeneous
 * network hierarchy", 2019). The others as ring.
 *
 * racks: the same with racks in place of hosts, if a file describes the racks (TUTTI_TUNE_FILE). The others as ring.
 *
 * chain: partial sums go from rank 0 to rank 1 and so on, in rank order, and the result goes back (a pipelined chain:
 * Chan, Heimlich, Purkayastha, van de Geijn, "Collective communication: theory, practice, and experience", 2007). Each
 * rank has links with only two others, however large the group; small operations take two hops per rank. Also used
 * where each of a few hosts has several ranks, with consecutive numbers: each host then sends a sum once. The others as
 * ring.
 *
 * Rings and trees list the ranks rack by rack, host by host, and within a host by shared caches and NUMA nodes
 * (TUTTI_ORDER); reductions list the ranks of a host by number instead. A host with less than half of the median host's
 * speed is placed at the leaves of trees.
 * Sums that must be made in rank order (of 16- and 8-bit floats, or in deterministic communicators) take direct,
 * oneshot or linear, and with more than 16 ranks (64 if all share memory) chain, instead of ring, tree, circulant,
 * doubling, hierarchical and racks. 16- and 8-bit floats travel along a chain as 32-bit floats, in pieces that take 32
 * MiB of memory, and are rounded once, at the end, so the bits are those of a sum made in one place.
 *
 * Reproducible sums. The result of a reduction of floats has the same bits on all ranks and in every run, if all
 * threads treat denormals alike (FTZ, DAZ), except for which NaN a sum is (tuttiRedOp_t), and extremes of denormals
 * with DAZ. It depends on the inputs, the count, datatype and op, the collective, its root, the number of ranks, and
 * their layout: which share a host, whether they share memory there, the hosts' CPUs and last-level caches, and their
 * network's speed. It does not depend on timing or load, earlier operations, the CPUs that ranks use, registration,
 * streams, in place or not, TUTTI_SLOTS and TUTTI_SLOT_BYTES. What changes the algorithm (TUTTI_ALGO, TUTTI_ORDER,
 * which transports open, a tuning file, another version) may change the bits, except of a minimum or maximum. Up to 16
 * ranks that share memory sum in rank order, and so do CUDA devices (except through host memory, or along a forced ring
 * or tree, whose order also depends on the device), others in another fixed order; two ranks have only one. With
 * config.deterministic it is rank order everywhere, whatever the layout, transport and algorithm. */

/* Explains how `comm` would carry out a collective at present, and why: for each algorithm that gives the promised
 * result the predicted time; what is forced; what is known of the group; the prices and where they come from; what the
 * links are. `collective` is the name of a function below without v or Quantized ("tuttiAllReduce"), called with
 * `count`, `datatype` and `op` (ignored if the collective has none). The English text for people goes to `text`, which
 * has room for *bytes bytes; it is cut where the room ends, and ends with a zero byte. *bytes becomes the size of the
 * whole text with that byte; with *bytes 0 `text` may be NULL. Not collective; waits for earlier calls; any thread.
 *
 * The prediction is a sum of hops, messages, bytes moved and bytes added up, each at a price (after Hockney, "The
 * communication challenge for MPP", 1994, and Thakur, Rabenseifner, Gropp, "Optimization of collective communication
 * operations in MPICH", 2005). The prices are built in, or those of a tuning file (TUTTI_TUNE_FILE), which tutti-tune
 * writes; nothing is measured while operations run.
 * Errors: tuttiInvalidArgument (not the name of a collective, bytes is NULL, text is NULL with *bytes > 0, datatype or
 * op out of range, count * size over 2^63, not a live communicator), tuttiInvalidUsage (its creation is under way). */
TUTTI_API tuttiResult_t tuttiExplain(const char* collective, size_t count, tuttiDataType_t datatype, tuttiRedOp_t op,
                                     tuttiComm_t comm, char* text, size_t* bytes);

/* ---- collectives ----------------------------------------------------------------------------------------------- */

/* recvbuff on every rank = `op` over all ranks' sendbuff, element by element; `count` elements of `datatype` each. In
 * place when sendbuff == recvbuff; otherwise the two must not overlap. Any alignment; count may be 0 (then the buffers
 * may be NULL, and the call only takes its place in the order). All ranks get bit-identical results. Blocks (stream
 * NULL) until the result is there, as long as the peers make progress (opTimeoutSeconds). The buffers belong to the
 * operation until the call returns or, with a stream, until the stream is past it. Errors: tuttiInvalidArgument (NULL
 * buffer with count > 0, datatype or op out of range, op made for another type or communicator, count * size over 2^63,
 * overlapping buffers, not a live communicator), tuttiInvalidUsage (ranks called different operations; finalized),
 * tuttiRemoteError (a peer died or aborted), tuttiTimeout, tuttiSystemError, tuttiUnhandledCudaError (CUDA failed). */
TUTTI_API tuttiResult_t tuttiAllReduce(const void* sendbuff, void* recvbuff, size_t count, tuttiDataType_t datatype,
                                       tuttiRedOp_t op, tuttiComm_t comm, tuttiStream_t stream);

/* tuttiAllReduce for slow networks: messages carry one byte per element. recvbuff on every rank is approximately `op`
 * over all ranks' sendbuff, with the same bits on all ranks and in every run. datatype: tuttiFloat32; op: tuttiSum or
 * tuttiAvg. Elements travel as wiretype, tuttiInt8 or tuttiFloat8e4m3, in blocks of block_elems (64, 128, 192 or 256),
 * each preceded by its scale, a float. Each rank sums its share of the blocks in float, in rank order, and quantises
 * the sums. With A(r) the largest magnitude of rank r's elements in a block, the error of a sum is at most the sum of
 * all A(r) / 126 (tuttiInt8) or all A(r) / 13.5 (tuttiFloat8e4m3), plus nranks * 2^-100; that of an average is this
 * divided by nranks. A block in which a rank has a NaN, an infinity or a magnitude over 2^127, or a sum exceeds that,
 * becomes NaNs. A lone rank's result is exact. Two buffers of `count` bytes plus the scales are kept until `comm` ends.
 *
 * Error feedback: errorbuff is NULL, or has `count` floats of this rank's, zeros before the first call, which must not
 * overlap the other two buffers. They are added to sendbuff's elements, and replaced by this rank's share of the
 * rounding errors: so the sum of the results of all calls with one errorbuff differs from the exact one by no more than
 * a single result does. An error that is not finite is stored as 0. The contents are undefined after an error, and
 * untouched by a lone rank. Some ranks may give an errorbuff and others none.
 *
 * Algorithm: two-shot (reduce-scatter, then all-gather, each by an exchange with every rank), with blocks scaled by
 * their largest magnitude as in QSGD (Alistarh et al., 2017), but rounded to the nearest; error feedback after Seide et
 * al., "1-bit stochastic gradient descent", 2014. If `comm` is on a GPU all buffers are on the GPU, which quantises
 * what goes to other ranks and converts the sums back to floats; the blocks travel through host memory, where each rank
 * sums its share. In place, alignment, blocking, ownership and errors as tuttiAllReduce; also tuttiInvalidArgument
 * (another datatype, op, wiretype or block_elems; errorbuff overlaps), tuttiInvalidUsage (ranks' wiretype or
 * block_elems differ). */
TUTTI_API tuttiResult_t tuttiAllReduceQuantized(const void* sendbuff, void* recvbuff, size_t count,
                                                tuttiDataType_t datatype, tuttiRedOp_t op, tuttiDataType_t wiretype,
                                                size_t block_elems, void* errorbuff, tuttiComm_t comm,
                                                tuttiStream_t stream);

/* recvbuff on every rank = sendbuff of rank `root`. sendbuff is read on the root only and may be NULL elsewhere. In
 * place on the root when sendbuff == recvbuff. The root returns once its messages are handed over, perhaps before they
 * arrive. Blocking, ownership and errors as tuttiAllReduce; also tuttiInvalidArgument (root not in [0, nranks)). */
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
 * place when sendbuff == recvbuff + rank * sendcount elements. Blocking, ownership and errors as tuttiAllReduce. */
TUTTI_API tuttiResult_t tuttiAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, tuttiDataType_t datatype,
                                       tuttiComm_t comm, tuttiStream_t stream);

/* recvbuff on rank r = block r of `op` over all ranks' sendbuff, each of nranks blocks of recvcount elements. In place
 * when recvbuff == sendbuff + rank * recvcount elements. Blocking, ownership and errors as tuttiAllReduce. */
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

/* tuttiAllGather with recvcounts[r] elements from rank r, placed at recvbuff + displs[r] elements. recvcounts must be
 * the same on all ranks, displs may differ; both arrays have nranks entries and are copied. In place when sendbuff ==
 * recvbuff + displs[rank] elements. Algorithm, blocking and errors as tuttiAllGather; also tuttiInvalidArgument
 * (recvcounts or displs is NULL, the blocks overlap). */
TUTTI_API tuttiResult_t tuttiAllGatherv(const void* sendbuff, void* recvbuff, const size_t* recvcounts,
                                        const size_t* displs, tuttiDataType_t datatype, tuttiComm_t comm,
                                        tuttiStream_t stream);

/* tuttiReduceScatter with recvcounts[r] elements for rank r; the blocks of sendbuff follow each other. recvcounts must
 * be the same on all ranks; it has nranks entries and is copied. In place when recvbuff is this rank's block of
 * sendbuff. Algorithm, blocking and errors as tuttiReduceScatter; also tuttiInvalidArgument (recvcounts is NULL). */
TUTTI_API tuttiResult_t tuttiReduceScatterv(const void* sendbuff, void* recvbuff, const size_t* recvcounts,
                                            tuttiDataType_t datatype, tuttiRedOp_t op, tuttiComm_t comm,
                                            tuttiStream_t stream);

/* tuttiAlltoAll with blocks of any size: sendcounts[r] elements at sendbuff + sdispls[r] go to rank r, whose recvcounts
 * and rdispls entries for this rank say how many it expects, and where. The arrays of nranks entries are copied. Never
 * in place. A group of tuttiSend and tuttiRecv, with their errors, but outside of a group called between the same two
 * collectives on all ranks; also tuttiInvalidArgument (an array is NULL; a block of recvbuff overlaps another). */
TUTTI_API tuttiResult_t tuttiAlltoAllv(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls,
                                       void* recvbuff, const size_t* recvcounts, const size_t* rdispls,
                                       tuttiDataType_t datatype, tuttiComm_t comm, tuttiStream_t stream);

/* Returns (or the stream continues) when every rank has called it. Algorithm: dissemination (Hensgen, Finkel, Manber,
 * "Two algorithms for barrier synchronization", 1988). Errors: tuttiInvalidArgument (not a live communicator or
 * stream), tuttiInvalidUsage, tuttiRemoteError, tuttiTimeout, tuttiSystemError. */
TUTTI_API tuttiResult_t tuttiBarrier(tuttiComm_t comm, tuttiStream_t stream);

/* Sends `count` elements to rank `peer`, which must call tuttiRecv with the same count and datatype. Messages between
 * two ranks keep their order. Outside of a group it returns when the message is handed over; except for small messages
 * after the first one to that rank, this requires that the receiver has called tuttiRecv. A rank that sends to itself,
 * or exchanges messages with a peer, must group the calls, with buffers that do not overlap (a message to itself may be
 * in place). Sends and receives are not among the operations that all ranks must call in the same order, but see
 * tuttiGroupEnd. Blocking, ownership and errors as tuttiAllReduce; also tuttiInvalidArgument (peer not in [0, nranks)),
 * and tuttiInvalidUsage (the receiver expects another count or datatype). */
TUTTI_API tuttiResult_t tuttiSend(const void* sendbuff, size_t count, tuttiDataType_t datatype, int peer,
                                  tuttiComm_t comm, tuttiStream_t stream);

/* Receives what rank `peer` sends with tuttiSend. Returns when the message is in recvbuff. Otherwise as tuttiSend. */
TUTTI_API tuttiResult_t tuttiRecv(void* recvbuff, size_t count, tuttiDataType_t datatype, int peer, tuttiComm_t comm,
                                  tuttiStream_t stream);

/* ---- operators ------------------------------------------------------------------------------------------------- */

/* Writes to *op an operator that multiplies each rank's input by that rank's `scalar`, one element of `datatype`, and
 * sums the products. It may be used wherever tuttiSum may, in operations of `comm` on elements of `datatype`. Not
 * collective; the ranks' scalars may differ. tuttiScalarHostImmediate: the scalar is copied now. tuttiScalarDevice:
 * `scalar` remains the caller's and is read whenever an operation runs, which on a stream may be after the call has
 * returned. Products are rounded to `datatype` before they are summed; those of integers wrap around. Does not block;
 * any thread. Owned by `comm`: freed by tuttiRedOpDestroy or with `comm`. Errors: tuttiInvalidArgument (op or scalar is
 * NULL, datatype or residence out of range, not a live communicator). */
TUTTI_API tuttiResult_t tuttiRedOpCreatePreMulSum(tuttiRedOp_t* op, void* scalar, tuttiDataType_t datatype,
                                                  tuttiScalarResidence_t residence, tuttiComm_t comm);

/* Frees an operator of tuttiRedOpCreatePreMulSum. Operations called with it before are not affected. Does not block;
 * any thread. Errors: tuttiInvalidArgument (op is built in, of another communicator or destroyed; not a live
 * communicator). */
TUTTI_API tuttiResult_t tuttiRedOpDestroy(tuttiRedOp_t op, tuttiComm_t comm);

/* ---- groups of calls ------------------------------------------------------------------------------------------- */

/* From here to tuttiGroupEnd, calls of operations on this thread are only checked and collected; so are
 * tuttiCommFinalize and functions that create a communicator, except tuttiCommInitAll and calls that continue in the
 * background, which begin at once. Groups nest; the outermost end counts. Does not block; per thread. Errors: none. */
TUTTI_API tuttiResult_t tuttiGroupStart(void);

/* Runs the collected calls: first the creations and finalizations, concurrently, but those on one communicator in the
 * order of calls; then the operations. All sends and receives of one communicator run together, in the place of the
 * first of them, when all their streams have come to it, and the streams go on behind them: so their own order does not
 * matter, but a group that mixes them with collectives must have the first one behind the same collective on all ranks,
 * or these wait for each other. One communicator's operations keep their order; several communicators run concurrently,
 * so one thread may hold several ranks. On return operations with a stream are queued there, and all others are done;
 * tuttiInProgress says that a creation or finalization continues in the background. If a call in the group was refused,
 * nothing is run, and its error is returned again. Errors: tuttiInvalidUsage (no tuttiGroupStart; messages to oneself
 * that do not match, or on several streams being captured), tuttiInvalidArgument (on host memory: overlapping memory to
 * receive into), tuttiSystemError (too few threads: no operation was begun), and the operations' first error. */
TUTTI_API tuttiResult_t tuttiGroupEnd(void);

/* Ends a group as tuttiGroupEnd does, but runs nothing, and writes how long the group would take to
 * simInfo->estimatedTime: the predictions (or measurements) that tuttiExplain shows, added up for each communicator; of
 * several communicators, which run concurrently, the longest. Ranks may simulate different groups. In a nested group it
 * leaves *simInfo as it is. Waits for the operations called before on these communicators; per thread. Errors:
 * tuttiInvalidArgument (simInfo is NULL or not from TUTTI_SIM_INFO_INITIALIZER), tuttiInvalidUsage (no tuttiGroupStart;
 * the group creates or finalizes communicators, which has no estimate), and the error of a call that was refused in the
 * group. */
TUTTI_API tuttiResult_t tuttiGroupSimulateEnd(tuttiSimInfo_t* simInfo);

#ifdef __cplusplus
}
#endif
#endif
