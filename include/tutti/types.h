/* The types of Tutti's C API; tutti/tutti.h has its functions and includes this header. */
#ifndef TUTTI_TYPES_H_
#define TUTTI_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#define TUTTI_MAJOR 0
#define TUTTI_MINOR 1
#define TUTTI_PATCH 0
/* A version as one number, as tuttiGetVersion returns it. */
#define TUTTI_VERSION(X, Y, Z) ((X)*10000 + (Y)*100 + (Z))
#define TUTTI_VERSION_CODE TUTTI_VERSION(TUTTI_MAJOR, TUTTI_MINOR, TUTTI_PATCH)

#if defined(__GNUC__)
#define TUTTI_API __attribute__((visibility("default")))
#else
#define TUTTI_API
#endif

/* One rank's membership in a group. Created by the tuttiCommInit functions, freed by tuttiCommDestroy or
 * tuttiCommAbort. */
typedef struct tuttiComm* tuttiComm_t;

/* A queue of operations that a thread of its own carries out in order. NULL means "on the caller's thread". With
 * config.cudaDevice it stands for a cudaStream_t, cast, and NULL is CUDA's default stream. */
typedef struct tuttiStream* tuttiStream_t;

/* A point in a stream that other streams and threads can wait for. */
typedef struct tuttiEvent* tuttiEvent_t;

#define TUTTI_UNIQUE_ID_BYTES 128
/* Where a group meets: the addresses and port of the process that called tuttiGetUniqueId, and a 128-bit secret. Plain
 * bytes: send it to the other ranks by any means that outsiders cannot read, because anyone who has it can join. */
typedef struct {
  char internal[TUTTI_UNIQUE_ID_BYTES];
} tuttiUniqueId;

/* What functions return; tuttiGetLastError() has the message. */
typedef enum {
  tuttiSuccess = 0,
  tuttiUnhandledCudaError = 1, /* a CUDA function failed */
  tuttiSystemError = 2,        /* the operating system refused something: memory, descriptors, sockets */
  tuttiInternalError = 3,      /* a bug in Tutti */
  tuttiInvalidArgument = 4,    /* an argument of this call is wrong; the message names it and its value */
  tuttiInvalidUsage = 5,       /* the call is wrong now: ranks disagree, a bad environment variable, a wrong state */
  tuttiRemoteError = 6,        /* a peer died, closed its communicator or reported an error; the message names it */
  tuttiInProgress = 7,         /* not finished; ask again */
  tuttiTimeout = 8,            /* the limit passed without progress; the message names the absent ranks */
  tuttiNumResults = 9
} tuttiResult_t;

typedef enum {
  tuttiInt8 = 0,
  tuttiChar = 0,
  tuttiUint8 = 1,
  tuttiInt32 = 2,
  tuttiInt = 2,
  tuttiUint32 = 3,
  tuttiInt64 = 4,
  tuttiUint64 = 5,
  tuttiFloat16 = 6,
  tuttiHalf = 6,
  tuttiFloat32 = 7,
  tuttiFloat = 7,
  tuttiFloat64 = 8,
  tuttiDouble = 8,
  tuttiBfloat16 = 9,
  tuttiFloat8e4m3 = 10,
  tuttiFloat8e5m2 = 11,
  tuttiNumTypes = 12
} tuttiDataType_t;

/* Reductions. Integer sums and products wrap around. tuttiMin and tuttiMax take -0 to be less than +0, and give NaN if
 * any input is NaN, of each type always the same one. tuttiAvg divides the sum by the number of ranks, integers
 * rounding towards zero. 16- and 8-bit floats are added, multiplied and divided in 32-bit floats, in rank order, and
 * rounded to nearest even once per output; 8-bit floats saturate at their largest number, but a product that overflows
 * 32-bit floats is infinite in tuttiFloat8e5m2. Which NaN (its sign and payload) a sum or product of 32- or 64-bit
 * floats is, is not promised, nor that it is the same on all ranks. */
typedef enum {
  tuttiSum = 0,
  tuttiProd = 1,
  tuttiMax = 2,
  tuttiMin = 3,
  tuttiAvg = 4,
  tuttiNumOps = 5,           /* from this value on: operators of tuttiRedOpCreatePreMulSum */
  tuttiMaxRedOp = 0x7fffffff /* so that the enum can hold them */
} tuttiRedOp_t;

/* How the scalar of tuttiRedOpCreatePreMulSum is read. The names are NCCL's: on host memory the device is the host. */
typedef enum {
  tuttiScalarDevice = 0,       /* read each time an operation runs */
  tuttiScalarHostImmediate = 1 /* copied when the operator is created */
} tuttiScalarResidence_t;

#define TUTTI_CONFIG_MAGIC 0x74757474u
#define TUTTI_CONFIG_UNDEF_INT (-2147483647 - 1)

/* Options of a communicator. Start from TUTTI_CONFIG_INITIALIZER, which fills in the size and version of the header
 * that the caller was compiled with: a newer library accepts an older caller's struct, and an older library reads the
 * fields that it knows of a newer caller's struct. Undefined fields take the environment's value or the default.
 * algo, deterministic, majority and encrypt must be the same on all ranks, and either all ranks set cudaDevice (each
 * its own) or none does: else creation fails with tuttiInvalidUsage. The other fields may differ. */
typedef struct {
  size_t size;            /* sizeof(tuttiConfig_t) */
  unsigned int magic;     /* TUTTI_CONFIG_MAGIC */
  unsigned int version;   /* TUTTI_VERSION_CODE */
  int initTimeoutSeconds; /* limit for the whole creation; else TUTTI_INIT_TIMEOUT, default 60 */
  int opTimeoutSeconds;   /* limit for an operation without progress; else TUTTI_OP_TIMEOUT, default 1800 */
  const char* transports; /* "shm,tcp": allowed, in order of preference; else TUTTI_TRANSPORTS; unset: all */
  const char* algo;       /* "ring", "tree", "direct", "oneshot", "circulant", "doubling", "linear", "hierarchical",
                             "racks" or "chain", see tutti.h, "Algorithms"; else TUTTI_ALGO; unset: by size */
  int deterministic;      /* 1: sums are added in rank order, bit-identical whatever the size, algorithm, transport and
                             placement; else TUTTI_DETERMINISTIC, default 0 */
  int blocking;           /* 0: creation and tuttiCommFinalize run in the background, see "Non-blocking"; default 1 */
  int cudaDevice; /* buffers are on this CUDA device, and streams are cudaStream_t; -1, the default: host memory */
  int majority;   /* 1: tuttiCommShrink without a list fails if fewer than half of the ranks are left, or exactly half
                     without the lowest, so that at most one side of a partitioned network continues; default 0 */
  int encrypt;    /* 1: everything that ranks send each other over TCP is encrypted and authenticated, and tcp is the
                     only network transport used; else TUTTI_ENCRYPT, default 0 */
} tuttiConfig_t;

#define TUTTI_CONFIG_INITIALIZER                                                                                    \
  {                                                                                                                 \
    sizeof(tuttiConfig_t), TUTTI_CONFIG_MAGIC, TUTTI_VERSION_CODE, TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_INT,  \
        NULL, NULL, TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_INT, TUTTI_CONFIG_UNDEF_INT, \
        TUTTI_CONFIG_UNDEF_INT                                                                                      \
  }

#define TUTTI_SIM_INFO_MAGIC 0x7475736du
/* The result of tuttiGroupSimulateEnd. Start from TUTTI_SIM_INFO_INITIALIZER; later versions append fields. */
typedef struct {
  size_t size;          /* sizeof(tuttiSimInfo_t) */
  unsigned int magic;   /* TUTTI_SIM_INFO_MAGIC */
  unsigned int version; /* TUTTI_VERSION_CODE */
  float estimatedTime;  /* in microseconds */
} tuttiSimInfo_t;

#define TUTTI_SIM_INFO_INITIALIZER \
  { sizeof(tuttiSimInfo_t), TUTTI_SIM_INFO_MAGIC, TUTTI_VERSION_CODE, -1.0f }

/* What a rank holds for a communicator. Start from TUTTI_COMM_MEM_STATS_INITIALIZER; later versions append fields. */
typedef struct {
  size_t size;            /* sizeof(tuttiCommMemStats_t) */
  size_t links;           /* one-way data connections, made when an operation first needs them */
  size_t linkBytes;       /* bytes of the links' slots; a link in shared memory counts on both ranks */
  size_t scratchBytes;    /* buffers for intermediate data of operations, except in GPU memory */
  size_t registeredBytes; /* bytes of buffers registered with the communicator */
  size_t descriptors;     /* file descriptors of its own: one per transport and one per link (in shared memory only to
                             another process), whatever addresses and connections these have; one for each connection
                             of the group and each address at which it listens; and those for wake-ups */
  size_t threads;         /* watching threads: 1, shared by all groups of the process (it has two descriptors);
                             streams have their own, and so has each communicator that writes TUTTI_METRICS_FILE or
                             looks for late ranks (TUTTI_LOG=info, on the first rank of each host); one on a
                             GPU has two */
} tuttiCommMemStats_t;

#define TUTTI_COMM_MEM_STATS_INITIALIZER \
  { sizeof(tuttiCommMemStats_t), 0, 0, 0, 0, 0, 0 }

#endif
