/* Data-parallel training on tutti.h: every rank computes gradients from its own part of a batch, and this layer
 * averages them over all ranks while the backward pass is still running. In host memory and on CUDA devices. C99 and
 * C++; part of libtutti.so.
 *
 * A training loop:
 *
 *   tuttiDdpCreate(&ddp, comm, params, nparams, buffers, nbuffers, NULL);    all ranks start with rank 0's values
 *   for each batch:
 *     tuttiDdpBegin(ddp);                 buffers become rank 0's
 *     ... forward ...
 *     ... backward: for each parameter i, as soon as its gradient is complete: tuttiDdpMarkReady(ddp, i) ...
 *     tuttiDdpWait(ddp);                  all gradients are averages over all ranks now, the same bits everywhere
 *     ... optimizer ...
 *   tuttiDdpDestroy(ddp);
 *
 * Gradients lie in buckets. Each bucket is all-reduced as a whole, strictly in order, by a thread of this layer: as
 * soon as all its gradients are ready and the buckets before it have been launched. Buckets are filled in reverse order
 * of the parameters, because that is about the order in which a backward pass yields gradients; after the first step
 * they are rebuilt in the order in which gradients became ready (rank 0's order, on all ranks). Method: Li et al.,
 * "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
 *
 * Threads. tuttiDdpMarkReady, tuttiDdpMarkUnused, tuttiDdpGradient and tuttiDdpGetStats may be called from any thread
 * at any time, also concurrently. The other functions on one handle must be called one at a time, from any thread, and
 * in the same order on all ranks. From tuttiDdpBegin to tuttiDdpWait no other operation may run on the communicator:
 * give other threads a communicator of their own (tuttiCommSplit). The communicator must outlive the handle. No
 * function of this header may be called between tuttiGroupStart and tuttiGroupEnd.
 *
 * CUDA. On a communicator with config.cudaDevice, parameters and buffers may be on that device (and others in host
 * memory; each kind has buckets of its own). All work on them is ordered by streams: tuttiDdpMarkReady refers to the
 * gradient at the present end of the caller's stream (tuttiDdpSetStream), buckets are averaged in a stream of this
 * layer, and after tuttiDdpWait the caller's stream waits for that. The host does not wait for gradients there, only
 * until all ranks have called tuttiDdpWait; in a step of checkEvery it also waits for the GPU. tuttiDdpCreate, and the
 * step in which buckets are rebuilt, wait for the device. The ranks also exchange messages in host memory: creation
 * splits the communicator, and tuttiDdpDestroy is collective, unless the communicator is broken. Steps cannot be
 * captured into CUDA graphs.
 *
 * Errors. A mistake of one rank (a gradient that is never marked, or marked twice, ...) ends tuttiDdpWait,
 * tuttiDdpCreate or tuttiDdpJoin on all ranks with the same sentence, which names the rank and the parameter; the
 * communicator stays usable and the next step can begin. Errors that break the communicator (tuttiRemoteError,
 * tuttiTimeout, tuttiSystemError) end the step, and are returned by all further calls that begin, mark or end one:
 * destroy the handle and create a new one on a communicator of the ranks that are left. tuttiDdpGetLastError() has the
 * sentence. */
#ifndef TUTTI_DDP_H_
#define TUTTI_DDP_H_

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what is trained ------------------------------------------------------------------------------------------- */

#define TUTTI_DDP_MAX_DIMS 8
/* tuttiDdpTensor_t.device of host memory. */
#define TUTTI_DDP_HOST (-1)

/* A model's gradient averager. Created by tuttiDdpCreate, freed by tuttiDdpDestroy. */
typedef struct tuttiDdp* tuttiDdp_t;

/* A parameter or a buffer. Copied at creation, except for what data and grad point to. */
typedef struct {
  const char* name;             /* for messages; NULL: they show its index only */
  void* data;                   /* `count` elements of `datatype`, broadcast; NULL: nothing is broadcast */
  void* grad;                   /* `count` elements of `gradDatatype`, copied into the bucket when it is marked, back in
                                   tuttiDdpWait; NULL: it lies in the bucket, see tuttiDdpGradient. Not for buffers. */
  size_t count;                 /* elements; may be 0 */
  tuttiDataType_t datatype;     /* of data: any */
  tuttiDataType_t gradDatatype; /* of grad: tuttiFloat32, tuttiFloat64, tuttiFloat16 or tuttiBfloat16 */
  int ndim;                     /* 0: a vector of `count`; at most TUTTI_DDP_MAX_DIMS */
  size_t shape[TUTTI_DDP_MAX_DIMS]; /* ndim lengths whose product is `count` */
  int device;                       /* of data and grad: TUTTI_DDP_HOST, or the communicator's cudaDevice */
} tuttiDdpTensor_t;

/* ---- hooks ----------------------------------------------------------------------------------------------------- */

/* A bucket to be averaged. The arrays belong to this layer and are valid during the call. */
typedef struct {
  size_t index;             /* buckets come in order, from 0 in each step */
  size_t nbuckets;          /* buckets in a step */
  void* data;               /* `count` elements: this rank's gradients, and zeros as padding between them */
  size_t count;             /* elements, the same on all ranks */
  tuttiDataType_t datatype; /* of all gradients in the bucket */
  size_t nparams;
  const size_t* params;  /* nparams indices of parameters */
  const size_t* offsets; /* nparams offsets into data, in elements */
} tuttiDdpBucket_t;

/* Replaces the all-reduce of a bucket: must leave in bucket->data what all ranks are to see as the average. It is
 * called on all ranks, on a thread of this layer, which takes no signals (nor do programs that it starts), in the order
 * of buckets. It calls operations on `comm` with `stream`, which is NULL on host memory: they block. On a GPU it
 * enqueues its work in `stream`, a cudaStream_t, cast, and must not wait; `comm` and the thread are on the device. If
 * it returns anything but tuttiSuccess, the step's tuttiDdpWait fails on all ranks; so it should fail only after its
 * operations, or because they failed. */
typedef tuttiResult_t (*tuttiDdpHook_t)(const tuttiDdpBucket_t* bucket, tuttiComm_t comm, tuttiStream_t stream,
                                        void* userData);

/* The built-in hooks. */
typedef enum {
  tuttiDdpAverage = 0,  /* tuttiAllReduce with tuttiAvg */
  tuttiDdpFloat16 = 1,  /* the same, but 32- and 64-bit gradients travel as float16; sums are made in 32 bits */
  tuttiDdpBfloat16 = 2, /* the same with bfloat16 */
  tuttiDdpPowerSgd =
      3,            /* 32-bit gradients of matrices as factors of low rank, with error feedback (Vogels, Karimireddy,
                       Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
                       NeurIPS 2019); others as tuttiDdpAverage. A tensor's first dimension counts as rows. */
  tuttiDdpInt8 = 4, /* tuttiAllReduceQuantized with tuttiAvg, tuttiInt8 and blocks of 128 for 32-bit gradients; others
                       as tuttiDdpAverage */
  tuttiDdpFloat8e4m3 = 5 /* the same with tuttiFloat8e4m3 */
} tuttiDdpCompression_t;

/* ---- options --------------------------------------------------------------------------------------------------- */

#define TUTTI_DDP_CONFIG_MAGIC 0x74646470u

/* Start from TUTTI_DDP_CONFIG_INITIALIZER. All ranks must agree on all but `overlap`, and on having a hook, which is
 * checked. */
typedef struct {
  size_t size;             /* sizeof(tuttiDdpConfig_t) */
  unsigned int magic;      /* TUTTI_DDP_CONFIG_MAGIC */
  unsigned int version;    /* TUTTI_VERSION_CODE */
  size_t firstBucketBytes; /* size at which the first bucket is full; default 1 MiB */
  size_t bucketCapBytes;   /* size at which all other buckets are full; default 25 MiB */
  int broadcastBuffers;    /* 1: tuttiDdpBegin broadcasts buffers; 0: only tuttiDdpBroadcastBuffers does */
  int findUnused;          /* 1: tuttiDdpMarkUnused may be called; each step then also exchanges a map of parameters */
  int staticGraph;    /* 1: every step uses the same parameters on this rank, steps without synchronisation included:
                         those that the first step with synchronisation does not mark are unused from then on, and their
                         gradients must not be written after tuttiDdpBegin. findUnused adds nothing to this. */
  int rebuildBuckets; /* 1: after the first step buckets are rebuilt in ready order; not with findUnused alone */
  int overlap;        /* 0: buckets are launched only by tuttiDdpWait, for comparison */
  int joinable;       /* 1: tuttiDdpJoin may be called; every step then costs one more small all-reduce */
  int checkEvery;     /* k > 0: every k-th step fails, naming rank and parameter, if gradients have NaN or Inf, or if
                         parameters or averaged gradients differ between ranks */
  tuttiDdpCompression_t compression;
  int powerSgdRank;      /* columns of the factors: 1 or more */
  int powerSgdStartStep; /* steps before this one are averaged without compression */
  uint64_t powerSgdSeed; /* seed of the initial factors */
  tuttiDdpHook_t hook;   /* instead of `compression`, or NULL */
  void* hookUserData;    /* passed to `hook`; remains the caller's */
  int errorFeedback; /* 1: rounding errors of tuttiDdpInt8 and tuttiDdpFloat8e4m3 are added to the next step's gradients
                        (dropped when buckets are rebuilt); keeps a float for each gradient element */
} tuttiDdpConfig_t;

#define TUTTI_DDP_CONFIG_INITIALIZER                                                                              \
  {                                                                                                               \
    sizeof(tuttiDdpConfig_t), TUTTI_DDP_CONFIG_MAGIC, TUTTI_VERSION_CODE, 1048576, 26214400, 1, 0, 0, 1, 1, 0, 0, \
        tuttiDdpAverage, 2, 10, 0, NULL, NULL, 0                                                                  \
  }

/* ---- life ------------------------------------------------------------------------------------------------------ */

/* Creates the averager of `nparams` parameters and `nbuffers` buffers (arrays in the model's order, copied; may be NULL
 * if the number is 0; config may be NULL) and writes its handle to *ddp. Collective over `comm`. Compares shapes, types
 * and config across ranks, then broadcasts the data of parameters and buffers from rank 0; work on these in streams
 * must be done before. Blocks until all ranks have called. Bucket memory is from tuttiMemAlloc or cudaMalloc, zeroed.
 * Errors, on all ranks alike: tuttiInvalidArgument (an argument is wrong on some rank), tuttiInvalidUsage (ranks
 * differ: the message names the first parameter that does, and the ranks), and those of tuttiAllReduce and
 * tuttiCommSplit. On error *ddp is NULL. tuttiInvalidArgument (ddp is NULL, comm is not a live communicator) is
 * returned at once, without telling the others. */
TUTTI_API tuttiResult_t tuttiDdpCreate(tuttiDdp_t* ddp, tuttiComm_t comm, const tuttiDdpTensor_t* params,
                                       size_t nparams, const tuttiDdpTensor_t* buffers, size_t nbuffers,
                                       const tuttiDdpConfig_t* config);

/* Waits for the buckets that this rank has launched, then frees the handle, its thread and its gradients. Collective on
 * a CUDA device, not in host memory. Memory that streams of a broken communicator may still use is freed when the next
 * handle is created. Errors: tuttiInvalidArgument (not a live handle). */
TUTTI_API tuttiResult_t tuttiDdpDestroy(tuttiDdp_t ddp);

/* The sentence that explains the last error that a function of this header returned on this thread; "" if there was
 * none. Valid until the thread's next error of such a function. */
TUTTI_API const char* tuttiDdpGetLastError(void);

/* Collective: the data of all parameters and buffers become those of rank `root`. Not during a step. Blocks until they
 * have arrived; on a GPU it takes its place in the caller's stream. Errors: tuttiInvalidArgument (not a live handle,
 * root not in [0, nranks)), tuttiInvalidUsage (a step is under way), and those of tuttiBroadcast. */
TUTTI_API tuttiResult_t tuttiDdpBroadcast(tuttiDdp_t ddp, int root);

/* tuttiDdpBroadcast of the buffers alone. Errors as there. */
TUTTI_API tuttiResult_t tuttiDdpBroadcastBuffers(tuttiDdp_t ddp, int root);

/* ---- a step ---------------------------------------------------------------------------------------------------- */

/* Writes the address of the gradient of parameter `index` to *grad: the caller's own memory, or `count` elements in the
 * bucket, aligned to 64 bytes and owned by the handle. A gradient in a bucket moves, with its value, when buckets are
 * rebuilt in one of the first calls of tuttiDdpBegin (or tuttiDdpJoin), so ask again after each. Does not block; any
 * thread. Errors: tuttiInvalidArgument (not a live handle, no such parameter, grad is NULL). */
TUTTI_API tuttiResult_t tuttiDdpGradient(tuttiDdp_t ddp, size_t index, void** grad);

/* Sets all gradients to zero. Not during a step. Errors: tuttiInvalidArgument (not a live handle), tuttiInvalidUsage (a
 * step is under way). */
TUTTI_API tuttiResult_t tuttiDdpZeroGradients(tuttiDdp_t ddp);

/* Begins a step, before its forward pass: broadcasts buffers (with config.broadcastBuffers) from rank 0, or if joinable
 * from the lowest rank that has not joined, and rebuilds buckets if that is due. Collective, except between
 * tuttiDdpNoSyncBegin and tuttiDdpNoSyncEnd. Blocks until the buffers have arrived. Errors: tuttiInvalidArgument (not a
 * live handle), tuttiInvalidUsage (the last step was not ended by tuttiDdpWait), and those of tuttiBroadcast. */
TUTTI_API tuttiResult_t tuttiDdpBegin(tuttiDdp_t ddp);

/* For gradients on a CUDA device: sets the stream in which the caller computes them, a cudaStream_t, cast; until the
 * first call it is NULL, CUDA's default stream. The new stream waits for all work in the old one. Not during a step.
 * Does not block. Errors: tuttiInvalidArgument (not a live handle), tuttiInvalidUsage (a step is under way; the
 * communicator is in host memory), tuttiUnhandledCudaError. */
TUTTI_API tuttiResult_t tuttiDdpSetStream(tuttiDdp_t ddp, tuttiStream_t stream);

/* The gradient of parameter `index` is complete, and must not be touched until tuttiDdpWait. Launches the buckets that
 * are now full. Does not block; any thread. Errors: tuttiInvalidArgument (not a live handle, no such parameter),
 * tuttiInvalidUsage (no step is under way; the parameter is marked already; it was unused in the first step of a static
 * graph), which tuttiDdpWait then reports on all ranks. In steps without synchronisation only what a static graph
 * forbids is refused. */
TUTTI_API tuttiResult_t tuttiDdpMarkReady(tuttiDdp_t ddp, size_t index);

/* Parameter `index` has no gradient in this step on this rank (config.findUnused or staticGraph): it counts as zero. If
 * no rank has used the parameter, its gradient is left as it was. A gradient accumulated in steps without
 * synchronisation counts as used. Otherwise as tuttiDdpMarkReady; also tuttiInvalidUsage (neither option is set; the
 * parameter was used in the first step of a static graph). */
TUTTI_API tuttiResult_t tuttiDdpMarkUnused(tuttiDdp_t ddp, size_t index);

/* Ends the step: blocks until all gradients are averaged on this rank. On a GPU the caller's stream waits for that
 * instead, and this call only until all ranks have called it. Collective like tuttiDdpBegin. After an error gradients
 * have no defined value. Errors: tuttiInvalidArgument (not a live handle), tuttiInvalidUsage, on all ranks with the
 * same sentence (which parameters never became ready, and on what rank; one was marked twice; a static graph changed; a
 * check failed), those of the hook, and those of tuttiAllReduce. */
TUTTI_API tuttiResult_t tuttiDdpWait(tuttiDdp_t ddp);

/* Steps that begin between this and tuttiDdpNoSyncEnd reduce nothing: gradients accumulate in place, and the next step
 * afterwards averages the sums. Calls nest. Not collective, but all ranks must reduce in the same steps. Does not
 * block. Errors: tuttiInvalidArgument (not a live handle), tuttiInvalidUsage (a step is under way). */
TUTTI_API tuttiResult_t tuttiDdpNoSyncBegin(tuttiDdp_t ddp);

/* Ends what tuttiDdpNoSyncBegin began. Errors as there; also tuttiInvalidUsage (nothing was begun). */
TUTTI_API tuttiResult_t tuttiDdpNoSyncEnd(tuttiDdp_t ddp);

/* This rank has no more input (config.joinable): takes part in the other ranks' steps with gradients of zero, until all
 * ranks have called this; averages are still divided by the number of all ranks. Then the parameters and buffers of the
 * lowest of the ranks that trained longest are broadcast, and all ranks may continue with tuttiDdpBegin. Blocks; other
 * ranks' steps without synchronisation do not end it. Gradients that this rank has accumulated without synchronisation
 * are lost. A static graph stays as it was; a rank that joins before its first step learns its graph in its first step
 * later. Errors: tuttiInvalidArgument (not a live handle), tuttiInvalidUsage (not joinable, a step is under way), those
 * of other ranks' steps, and those of tuttiAllReduce. */
TUTTI_API tuttiResult_t tuttiDdpJoin(tuttiDdp_t ddp);

/* ---- statistics ------------------------------------------------------------------------------------------------ */

/* Statistics of one rank. Start from TUTTI_DDP_STATS_INITIALIZER; later versions append fields. Times are in seconds.
 * On a GPU they are measured between events in the streams, for steps that it has finished. With gradients on a GPU and
 * the host, the backward time is the longer of the two, and the others are sums. */
typedef struct {
  size_t size;            /* sizeof(tuttiDdpStats_t) */
  uint64_t steps;         /* steps that reduced and succeeded */
  uint64_t rebuilds;      /* how often buckets were rebuilt */
  size_t parameters;      /* elements of all parameters */
  size_t buckets;         /* present number */
  size_t gradientBytes;   /* bytes of all buckets, padding included */
  size_t reducedBytes;    /* bytes that this rank gave to operations in the last step: less with compression */
  double backwardSeconds; /* last step: from the first mark to the call of tuttiDdpWait */
  double commSeconds;     /* last step: in hooks, including waiting for other ranks */
  double exposedSeconds;  /* last step: the part of commSeconds that tuttiDdpWait had to wait for */
  double overlapPercent;  /* 100 * (1 - exposed / comm) over all steps; 0 before the first */
  double totalBackwardSeconds, totalCommSeconds, totalExposedSeconds; /* the same over all steps */
} tuttiDdpStats_t;

#define TUTTI_DDP_STATS_INITIALIZER \
  { sizeof(tuttiDdpStats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* Writes the handle's statistics to *stats. Does not block; any thread. Errors: tuttiInvalidArgument (not a live
 * handle, stats is NULL or its size too small). */
TUTTI_API tuttiResult_t tuttiDdpGetStats(tuttiDdp_t ddp, tuttiDdpStats_t* stats);

/* ---- who trains on what ---------------------------------------------------------------------------------------- */

/* How a data set is divided among ranks. Start from TUTTI_DDP_SAMPLER_INITIALIZER. */
typedef struct {
  size_t size;          /* sizeof(tuttiDdpSampler_t) */
  uint64_t datasetSize; /* samples, at most 2^62 */
  int nranks;
  int rank;
  int shuffle;    /* 1: the order depends on seed and epoch, the same on all ranks; 0: it is 0, 1, 2, ... */
  int dropLast;   /* if nranks does not divide datasetSize: drop the remainder (1), or repeat first samples (0) */
  uint64_t epoch; /* each epoch has another order */
  uint64_t seed;
} tuttiDdpSampler_t;

#define TUTTI_DDP_SAMPLER_INITIALIZER \
  { sizeof(tuttiDdpSampler_t), 0, 1, 0, 1, 0, 0, 0 }

/* Writes to *length how many samples each rank gets in an epoch, the same number for all. Does not block; any thread.
 * Errors: tuttiInvalidArgument (a NULL, a field out of range). */
TUTTI_API tuttiResult_t tuttiDdpSamplerLength(const tuttiDdpSampler_t* sampler, uint64_t* length);

/* Writes `count` indices in [0, datasetSize) to `indices`: this rank's samples first, first + 1, ... Rank r gets every
 * nranks-th sample of the order, beginning with its r-th, so the ranks' n-th batches together are one contiguous piece
 * of it; without shuffle these are the indices of PyTorch's DistributedSampler. Needs no memory: the shuffled order is
 * a permutation computed index by index (a Feistel network with cycle walking: Black and Rogaway, "Ciphers with
 * arbitrary finite domains", 2002). Does not block; any thread. Errors as tuttiDdpSamplerLength; also
 * tuttiInvalidArgument (first + count is over the length, indices is NULL with count > 0). */
TUTTI_API tuttiResult_t tuttiDdpSamplerIndices(const tuttiDdpSampler_t* sampler, uint64_t first, uint64_t count,
                                               uint64_t* indices);

/* An array with its shape, and bytes that describe it. Start from TUTTI_DDP_DATA_INITIALIZER. */
typedef struct {
  size_t size;              /* sizeof(tuttiDdpData_t) */
  void* data;               /* shape[0] * shape[1] * ... elements */
  tuttiDataType_t datatype; /* tuttiUint8 for any bytes */
  int ndim;                 /* 1 to TUTTI_DDP_MAX_DIMS; 0: there are no data */
  size_t shape[TUTTI_DDP_MAX_DIMS];
  void* metadata; /* any bytes: names, a JSON text, ... */
  size_t metadataBytes;
} tuttiDdpData_t;

#define TUTTI_DDP_DATA_INITIALIZER \
  { sizeof(tuttiDdpData_t), NULL, tuttiUint8, 0, {0, 0, 0, 0, 0, 0, 0, 0}, NULL, 0 }

/* Gives rank root's data to all ranks of `comm`. On the root *data is what to send, and does not change. The other
 * ranks need not know anything about it: their *data is overwritten, with memory that the caller owns and frees by
 * tuttiDdpFreeData. Collective; blocks until the data have arrived. One rank of each group can load for the others;
 * with six ranks in the groups [0,3], [1,4], [2,5]:
 *
 *   tuttiCommSplit(comm, rank % 3, rank, &group, NULL);
 *   if (rank < 3) load(&data, rank);                 ranks 0, 1, 2 are rank 0 of their groups
 *   tuttiDdpBroadcastData(&data, 0, group);
 *
 * Errors, on all ranks alike: tuttiInvalidArgument (a field of the root's data is wrong, data is NULL, root not in [0,
 * nranks); comm is on a CUDA device), tuttiSystemError (a rank has no memory for it), and those of tuttiBroadcast. */
TUTTI_API tuttiResult_t tuttiDdpBroadcastData(tuttiDdpData_t* data, int root, tuttiComm_t comm);

/* Divides rank root's data among all ranks of `comm` along the first dimension, in rank order; if it does not divide
 * evenly, the first ranks get one row more. `all` is read on the root only and may be NULL elsewhere. Every rank's
 * *part is overwritten, with memory to be freed by tuttiDdpFreeData; metadata go to all ranks as a whole. Blocking and
 * errors as tuttiDdpBroadcastData. */
TUTTI_API tuttiResult_t tuttiDdpScatterData(const tuttiDdpData_t* all, tuttiDdpData_t* part, int root,
                                            tuttiComm_t comm);

/* Frees what tuttiDdpBroadcastData (except on its root) and tuttiDdpScatterData have allocated, and empties *data.
 * Errors: tuttiInvalidArgument (data is NULL, or has memory from elsewhere). */
TUTTI_API tuttiResult_t tuttiDdpFreeData(tuttiDdpData_t* data);

#ifdef __cplusplus
}
#endif
#endif
