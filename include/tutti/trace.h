/* Tutti: seeing why a job hangs or is slow. Every communicator keeps its last 1,024 operations on this rank, with their
 * times and callers, in a file below TUTTI_TRACE_DIR, which `tutti-trace` reads while the job runs or hangs and after
 * it was killed. A communicator that breaks writes them to TUTTI_TRACE_FILE, if that is set. With these functions a
 * program can ask for the same. C99 and C++.
 *
 * They wait for no operation and may be called from any thread, also while another one hangs in an operation.
 */
#ifndef TUTTI_TRACE_H_
#define TUTTI_TRACE_H_

#include "tutti/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes what `comm` keeps on this rank to the file `path` as JSON, in the shape of PyTorch's flight recorder; what
 * only Tutti knows is under "tutti". In `path` %r becomes the rank, %p the process, %h the host, %g the group's number,
 * and a file that exists is replaced. With comm NULL all communicators of the process are written: then `path` has to
 * tell them apart. Errors: tuttiInvalidArgument (path is NULL, not a live communicator), tuttiInvalidUsage (its
 * creation is under way), tuttiSystemError (the file cannot be written). */
TUTTI_API tuttiResult_t tuttiDumpTrace(tuttiComm_t comm, const char* path);

/* Writes one sentence to `text`, of *bytes bytes: whom this rank waits for, whom that one waits for, and who is the
 * cause. Ranks of other hosts, or with another TUTTI_TRACE_DIR, are asked once an operation has waited for 0.4 s (for
 * longer in groups of more than 255), and have answered half a second later; that one of them does not answer, because
 * its process is stopped and no other rank of its host can say so, is known after 2.5 s. *bytes becomes the length of
 * the whole sentence with its final zero; what does not fit is cut off. With *bytes 0, text may be NULL. Errors:
 * tuttiInvalidArgument (bytes is NULL, text is NULL with *bytes > 0, not a live communicator), tuttiInvalidUsage (its
 * creation is under way). */
TUTTI_API tuttiResult_t tuttiCommExplainWait(tuttiComm_t comm, char* text, size_t* bytes);

/* How late a rank came to collectives, so that the others waited for it. A rank is late if it comes a millisecond or
 * more after the others (their median), and has been outside of operations for that much longer than they have; so a
 * rank that was held up by a late rank in the operation before is not late. At most one rank is late for an operation.
 * Start from TUTTI_LATENESS_INITIALIZER; later versions append. */
typedef struct {
  size_t size;          /* sizeof(tuttiLateness_t) */
  uint64_t operations;  /* that were looked at */
  uint64_t late;        /* of these, that it was late for */
  double lateSeconds;   /* by how much, in all of them */
  double worstSeconds;  /* and in the worst */
  double waitedSeconds; /* that the other ranks waited for it, all together */
} tuttiLateness_t;

#define TUTTI_LATENESS_INITIALIZER \
  { sizeof(tuttiLateness_t), 0, 0, 0, 0, 0 }

/* How late `rank` was in those of the last 1,024 operations that are collectives, compared with all ranks that are on
 * this rank's host and share TUTTI_TRACE_DIR with it, and with the ranks of other hosts; with 0 operations in
 * *lateness, if it is not one of these. Across hosts only operations count that nobody leaves before all have come (not
 * broadcast, reduce, gather and scatter), and of many only a sample. A rank that waits in another communicator's
 * operation counts as outside of this one's. Any thread; takes about a millisecond, and where there are other hosts
 * until they have answered, for a second at most. Errors: tuttiInvalidArgument (no such rank, lateness is NULL or its
 * size too small, not a live communicator), tuttiInvalidUsage (its creation is under way). */
TUTTI_API tuttiResult_t tuttiCommLateness(tuttiComm_t comm, int rank, tuttiLateness_t* lateness);

/* For bindings of languages where an address does not identify a place in the program. Gives `text`, such as
 * "all_reduce of float32[1024] at train.py:41", a number: *place. The text is copied, and cut off after 119 bytes. The
 * last 4,096 are kept. Errors: tuttiInvalidArgument (text or place is NULL). */
TUTTI_API tuttiResult_t tuttiNamePlace(const char* text, uint64_t* place);

/* Sets the place that this thread's operations are reported to come from, from now on: one from tuttiNamePlace, or 0
 * for the address of the call. Files of the flight recorder and sentences on errors and waits, on all ranks, have the
 * place's name beside the operation. It takes a few nanoseconds and never fails. Errors: none. */
TUTTI_API tuttiResult_t tuttiSetPlace(uint64_t place);

#ifdef __cplusplus
}
#endif

#endif
