/* Tutti: groups made from groups, and groups that change: split, lost ranks, shrink, revoke, grow, leave. A part of
 * tutti.h, which includes this header; what tutti.h says about threads, errors and groups of calls applies here too. */
#ifndef TUTTI_MEMBERSHIP_H
#define TUTTI_MEMBERSHIP_H

#include "tutti/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The color of a rank that joins none of the new communicators. */
#define TUTTI_SPLIT_NOCOLOR (-1)

/* Collective over `comm`: ranks that give the same color (>= 0) form a new communicator, ordered by key, then by rank
 * in `comm`; a rank with TUTTI_SPLIT_NOCOLOR gets NULL. Fields that config leaves undefined (all of them if it is NULL)
 * are those of `comm`, which does not change. Blocks until the new group has formed. With config.blocking = 0 the call
 * takes its place in the order of operations on `comm` at once, and returns tuttiInProgress, or tuttiSuccess without a
 * color; destroying `comm` waits for it, even if *newcomm was aborted. Errors: tuttiInvalidArgument (newcomm is NULL,
 * color below -1, not a live communicator, config), and those of tuttiAllGather and tuttiCommInitRankConfig. */
TUTTI_API tuttiResult_t tuttiCommSplit(tuttiComm_t comm, int color, int key, tuttiComm_t* newcomm,
                                       const tuttiConfig_t* config);

/* The n ranks of `comm` that `ranks` lists form a new communicator, in the order of the list. Only they call this, all
 * with the same list, which is copied. `comm` does not change. The call takes its place in the order of operations on
 * `comm` on each of these ranks, but is not among the operations that all ranks must call. Blocks until the new group
 * has formed, at most the limit for creation, or 20 s once any rank of `comm` is lost; config as for
 * tuttiCommSplit, including config.blocking = 0. Errors: tuttiInvalidArgument (newcomm or ranks is NULL, n not in [1,
 * nranks], a rank out of range or listed twice, this rank not listed, not a live communicator, config), those of
 * tuttiCommInitRankConfig, and, which also break `comm`, tuttiInvalidUsage (the lists differ) and tuttiTimeout (a
 * listed rank does not call this in time). */
TUTTI_API tuttiResult_t tuttiCommCreateGroup(tuttiComm_t comm, const int* ranks, int n, tuttiComm_t* newcomm,
                                             const tuttiConfig_t* config);

/* Writes the ranks of `comm` that are lost to ranks, which has room for nranks entries, in the order in which this rank
 * learned of them (so if others left because a rank died, the first is that rank), and their number to *count. A rank
 * is lost if its process died, or its host has not answered for 2 s. When an operation or tuttiCommGetAsyncError
 * reports that a rank died, the list has it. Each rank watches its neighbours in rings and trees: if several ranks die
 * at about the same time, the list may stay shorter on some. A rank that called tuttiCommAbort, or tuttiCommDestroy
 * after an error, counts as lost, too; one that is stopped or slow, or has called tuttiCommDestroy without an error,
 * does not, until others shrink the communicator without it, because who looks for it then finds it gone.
 * Does not block; any thread. Errors: tuttiInvalidArgument (ranks or count is NULL, not a live communicator),
 * tuttiInvalidUsage (its creation is under way). */
TUTTI_API tuttiResult_t tuttiCommLostRanks(const tuttiComm_t comm, int* ranks, int* count);

#define TUTTI_SHRINK_DEFAULT 0x00
#define TUTTI_SHRINK_ABORT 0x01

/* The remaining ranks of `comm` form a new communicator, in their old order; tuttiCommCount tells their number. `comm`
 * may be broken, and it does not matter what was called on it: only the addresses and the secret that all its ranks
 * have had since its creation are used. `comm` does not change and has to be destroyed as usual. Without a list (NULL,
 * 0) all live ranks of `comm` call this, and determine among themselves who they are, whatever tuttiCommLostRanks says
 * on each. Ranks that die meanwhile are left out, too. Either all others get the communicator or all get an error: only
 * when the limit passes may they differ. With a list, the ranks on it are left out, dead or alive, and all others call
 * this with the same list; if one of these is lost, all get tuttiRemoteError, which names it.
 * TUTTI_SHRINK_DEFAULT: waits for the operations called on `comm` before. TUTTI_SHRINK_ABORT: ends them first, on all
 * ranks, as tuttiCommAbort does: they return tuttiInvalidUsage here and tuttiRemoteError on the other ranks, and `comm`
 * is broken. Blocks until the new group has formed, at most the limit for creation, however many ranks die; config as
 * for tuttiCommSplit, including config.blocking = 0. Any thread; several calls on one `comm` run one after the other.
 * Errors: tuttiInvalidArgument (newcomm is NULL, excludeRanksList is NULL with excludeRanksCount > 0, excludeRanksCount
 * not in [0, nranks), a rank out of range, listed twice, or this one, unknown shrinkFlags, not a live communicator,
 * config), tuttiInvalidUsage (`comm` was finalized), tuttiTimeout (a live rank did not call this in time, or with
 * another list), tuttiRemoteError (a rank is lost that is not on the list; or the others took this rank to be lost and
 * continued without it; or, with config.majority, too few ranks are left), and those of tuttiCommInitRankConfig. */
TUTTI_API tuttiResult_t tuttiCommShrink(tuttiComm_t comm, int* excludeRanksList, int excludeRanksCount,
                                        tuttiComm_t* newcomm, const tuttiConfig_t* config, int shrinkFlags);

/* Ends all operations on `comm`, on all ranks, whatever they are doing. A rank calls it when it knows, for example from
 * a failure of its own, that the others should stop waiting and form a new group. Operations under way and later ones
 * return tuttiInvalidUsage here and, on the other ranks, tuttiRemoteError naming this rank. Unlike tuttiCommAbort it
 * keeps the handle: tuttiCommShrink without a list makes a new communicator of all live ranks, including this one. If
 * `comm` is already broken, nothing changes. revokeFlags is 0. Waits until the operations that are queued on this
 * process's streams have ended, never for a peer; any thread. Errors: tuttiInvalidArgument (revokeFlags, not a live
 * communicator), tuttiInvalidUsage (its creation is under way). */
TUTTI_API tuttiResult_t tuttiCommRevoke(tuttiComm_t comm, int revokeFlags);

/* The ranks of `comm` and new ones form a new communicator of nRanks ranks; all old and new ranks call this. Each rank
 * of `comm` keeps its number and gives `comm`, with rank -1 or its number; a new rank gives comm NULL and a rank from
 * the size of `comm` to nRanks - 1. uniqueId is from tuttiGetUniqueId, a new one for each call: all new ranks give it,
 * and at least one rank of `comm`; the other ranks of `comm` give NULL or the same. `comm` does not change. It passes
 * the id on, in the order of its operations, so it must work: after a loss call tuttiCommShrink first. Blocks until the
 * new group has formed, at most the limit for creation; if `comm` fails before, the new ranks are told. config as for
 * tuttiCommSplit, for new ranks as for tuttiCommInitRankConfig, including config.blocking = 0. Errors:
 * tuttiInvalidArgument (newcomm is NULL, nRanks is less than `comm` has, rank does not fit, a new rank without
 * uniqueId, not a live communicator, config), tuttiInvalidUsage (no rank of `comm` gave uniqueId, or they gave
 * different ones), and those of tuttiAllGather and tuttiCommInitRankConfig. */
TUTTI_API tuttiResult_t tuttiCommGrow(tuttiComm_t comm, int nRanks, const tuttiUniqueId* uniqueId, int rank,
                                      tuttiComm_t* newcomm, const tuttiConfig_t* config);

/* tuttiCommFinalize for this rank alone, as NCCL's ncclCommFinalize: waits until the operations called on `comm` before
 * are done on this rank, not for other ranks, and compares nothing. A thread may finalize and destroy several ranks one
 * after the other. A peer that still needs something of this rank, such as its tuttiCommFinalize, gets
 * tuttiRemoteError. What is allowed afterwards, groups and config.blocking = 0 as for tuttiCommFinalize. Errors:
 * tuttiInvalidArgument (not a live communicator), and the error of an operation that failed before. */
TUTTI_API tuttiResult_t tuttiCommFinalizeLocal(tuttiComm_t comm);

#ifdef __cplusplus
}
#endif
#endif
