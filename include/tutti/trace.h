/* Tutti: finding out why a job hangs or is slow. Every communicator keeps its last 1,024 operations on this rank, with
 * their times and callers, in a file below TUTTI_TRACE_DIR, which `tutti-trace` reads while the job runs or hangs and
 * after it was killed. A communicator that breaks writes them to TUTTI_TRACE_FILE, if that is set. These functions give
 * a program the same information. C99 and C++.
 *
 * They do not wait for operations and may be called from any thread, even while another one hangs in an operation.
 */
#ifndef TUTTI_TRACE_H_
#define TUTTI_TRACE_H_

#include "tutti/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the operations that `comm` has recorded on this rank to the file `path` as JSON, in the format of PyTorch's
 * flight recorder; what only Tutti knows is under "tutti". In `path` %r becomes the rank, %p the process, %h the host,
 * %g the group's number; an existing file is replaced. With comm NULL all communicators of the process are written, and
 * `path` must contain enough of these to tell them apart. Errors: tuttiInvalidArgument (path is NULL, not a live
 * communicator), tuttiInvalidUsage (its creation is under way), tuttiSystemError (the file cannot be written). */
TUTTI_API tuttiResult_t tuttiDumpTrace(tuttiComm_t comm, const char* path);

/* Writes one sentence to `text`, which has room for *bytes bytes: which rank this rank waits for, which one that rank
 * waits for, and so on, and which rank is the cause. Ranks on other hosts, or with another TUTTI_TRACE_DIR, are asked
 * once an operation has waited for 0.4 s (longer in groups of more than 255), and have answered half a second later. If
 * one does not answer because its process is stopped, and no other rank of its host can say so, that is known after 2.5
 * s. *bytes becomes the length of the whole sentence with its final zero; what does not fit is cut off. With *bytes 0,
 * text may be NULL. Errors: tuttiInvalidArgument (bytes is NULL, text is NULL with *bytes > 0, not a live
 * communicator), tuttiInvalidUsage (its creation is under way). */
TUTTI_API tuttiResult_t tuttiCommExplainWait(tuttiComm_t comm, char* text, size_t* bytes);

/* How late a rank came to collectives, so that the others waited for it. A rank is late if it comes a millisecond or
 * more after the others (their median), and has been outside of operations for that much longer than they have: so a
 * rank that was itself held up in the previous operation, by a late rank, does not count as late. At most one rank is
 * late for an operation. Start from TUTTI_LATENESS_INITIALIZER; later versions append fields. */
typedef struct {
  size_t size;          /* sizeof(tuttiLateness_t) */
  uint64_t operations;  /* operations compared */
  uint64_t late;        /* how many of these the rank was late for */
  double lateSeconds;   /* by how much it was late, over all of them */
  double worstSeconds;  /* by how much in the worst one */
  double waitedSeconds; /* how long the other ranks waited for it, summed over these ranks */
} tuttiLateness_t;

#define TUTTI_LATENESS_INITIALIZER \
  { sizeof(tuttiLateness_t), 0, 0, 0, 0, 0 }

/* Writes to *lateness how late `rank` was for the collectives among the last 1,024 operations, compared with all ranks
 * that are on this rank's host and share TUTTI_TRACE_DIR with it, and with the ranks of other hosts; if `rank` is none
 * of these, *lateness has 0 operations. Across hosts only operations count that no rank leaves before all have come
 * (not broadcast, reduce, gather and scatter), and if there are many only a sample. A rank that waits in another
 * communicator's operation counts as outside of operations. Any thread; takes about a millisecond or, if there are
 * other hosts, until they have answered, at most a second. Errors: tuttiInvalidArgument (no such rank, lateness is NULL
 * or its size too small, not a live communicator), tuttiInvalidUsage (its creation is under way). */
TUTTI_API tuttiResult_t tuttiCommLateness(tuttiComm_t comm, int rank, tuttiLateness_t* lateness);

/* For bindings of languages in which an address does not identify a place in the program. Assigns a number, *place, to
 * `text`, such as "all_reduce of float32[1024] at train.py:41". The text is copied, and cut off after 119 bytes. The
 * last 4,096 texts are kept. Any thread. Errors: tuttiInvalidArgument (text or place is NULL). */
TUTTI_API tuttiResult_t tuttiNamePlace(const char* text, uint64_t* place);

/* Sets the place that this thread's operations are reported to come from, from now on: a number from tuttiNamePlace, or
 * 0 for the address of the call. Flight-recorder files and sentences on errors and waits, on all ranks, show the
 * place's text beside the operation. Takes a few nanoseconds and never fails. Errors: none. */
TUTTI_API tuttiResult_t tuttiSetPlace(uint64_t place);

#ifdef __cplusplus
}
#endif

#endif
