/* Tutti: groups made from groups, and groups that change: split, lost ranks, shrink, revoke, grow. A part of tutti.h,
 * which includes it; what it says about threads, errors and groups of calls applies here too. */
#ifndef TUTTI_MEMBERSHIP_H
#define TUTTI_MEMBERSHIP_H

#include "tutti/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* color of a rank that joins none of the new communicators. */
#define TUTTI_SPLIT_NOCOLOR (-1)

/* Collective over `comm`: ranks that give the same color (>= 0) form a new communicator, ordered by key, then by rank
 * in `comm`; a rank with TUTTI_SPLIT_NOCOLOR gets NULL. Fields that config leaves undefined, and all with NULL, are
 * those of `comm`, which does not change. Blocks until the new group has formed. With config.blocking = 0 it takes its
 * place in the order of operations on `comm` now, and returns tuttiInProgress, or tuttiSuccess without a color;
 * destroying `comm` waits for it, also after *newcomm was aborted. Errors: tuttiInvalidArgument (newcomm is NULL, color
 * below -1, not a live communicator, config), and those of tuttiAllGather and tuttiCommInitRankConfig. */
TUTTI_API tuttiResult_t tuttiCommSplit(tuttiComm_t comm, int color, int key, tuttiComm_t* newcomm,
                                       const tuttiConfig_t* config);

/* The ranks of `comm` that `ranks` lists, n of them, form a new communicator, in the order of the list; only they call
 * this, all with the same list, which is copied. `comm` stays as it is, and the call takes its place in the order of
 * each of these ranks' operations on it; it does not count as an operation that all ranks have to call. Blocks until
 * the new group has formed, at most the limit for creation; config as for tuttiCommSplit, also for config.blocking = 0.
 * Errors: tuttiInvalidArgument (newcomm or ranks is NULL, n not in [1, nranks], a rank out of range or listed twice,
 * this rank not listed, not a live communicator, config), those of tuttiCommInitRankConfig, and, which also breaks
 * `comm`, tuttiInvalidUsage (the lists differ) and tuttiTimeout (a listed rank does not call this in time). */
TUTTI_API tuttiResult_t tuttiCommCreateGroup(tuttiComm_t comm, const int* ranks, int n, tuttiComm_t* newcomm,
                                             const tuttiConfig_t* config);

/* Writes the ranks of `comm` whose processes died, or whose host has not answered for 2 s, to ranks, which has room for
 * nranks entries, in rising order, and their number to *count. When an operation or tuttiCommGetAsyncError says that a
 * rank died, it is there. Each rank watches its neighbours in rings and trees: where several die at about the same
 * time, the list may stay shorter on some. A rank that called tuttiCommAbort, or tuttiCommDestroy after an error,
 * counts as well; one that is stopped or slow, or has called tuttiCommDestroy without an error, does not. Does not
 * block; any thread. Errors: tuttiInvalidArgument (ranks or count is NULL, not a live communicator), tuttiInvalidUsage
 * (its creation is under way). */
TUTTI_API tuttiResult_t tuttiCommLostRanks(const tuttiComm_t comm, int* ranks, int* count);

#define TUTTI_SHRINK_DEFAULT 0x00
#define TUTTI_SHRINK_ABORT 0x01

/* The ranks of `comm` that are left form a new communicator, in their old order: tuttiCommCount says how many they are.
 * `comm` need not work, and it does not matter what was called on it: only the addresses and the secret that all its
 * ranks have had since its creation are used. `comm` stays as it is and has to be destroyed as usual. Without a list
 * (NULL, 0) all ranks of `comm` that live call this, and find out by themselves who they are, whatever
 * tuttiCommLostRanks says on each. Ranks that die meanwhile are left out, too; all others get the communicator, or all
 * an error: only when the limit passes may they differ. With a list, the ranks on it are left out, dead or alive; all
 * others call this with the same list. If one of them is lost, all get tuttiRemoteError, which names it.
 * TUTTI_SHRINK_DEFAULT: waits for the operations that were called on `comm` before. TUTTI_SHRINK_ABORT: ends them
 * first, on all ranks, as tuttiCommAbort does: they return tuttiInvalidUsage here and tuttiRemoteError there, and
 * `comm` is broken. Blocks until the new group has formed, at most the limit for creation, however many die; config as
 * for tuttiCommSplit, also for config.blocking = 0. Any thread; several calls on one `comm` take their turns. Errors:
 * tuttiInvalidArgument (newcomm is NULL, excludeRanksList is NULL with excludeRanksCount > 0, excludeRanksCount not in
 * [0, nranks), a rank out of range, listed twice, or this one, unknown shrinkFlags, not a live communicator, config),
 * tuttiInvalidUsage (`comm` was finalized), tuttiTimeout (a rank that lives did not call this in time, or with another
 * list), tuttiRemoteError (a rank is lost that the list does not have; or the others took this rank to be lost and
 * continued without it), and those of tuttiCommInitRankConfig. */
TUTTI_API tuttiResult_t tuttiCommShrink(tuttiComm_t comm, int* excludeRanksList, int excludeRanksCount,
                                        tuttiComm_t* newcomm, const tuttiConfig_t* config, int shrinkFlags);

/* Ends all operations on `comm`, on all ranks, whatever they are doing. A rank calls it when it knows, say from a
 * failure of its own, that the others should stop waiting and form a new group. Operations under way and later ones
 * return tuttiInvalidUsage here and tuttiRemoteError, naming this rank, there. In contrast to tuttiCommAbort the handle
 * stays: tuttiCommShrink without a list makes a new communicator of all ranks that live, this one, too. If `comm` is
 * already broken nothing changes. revokeFlags is 0. Does not block; any thread. Errors: tuttiInvalidArgument
 * (revokeFlags, not a live communicator), tuttiInvalidUsage (its creation is under way). */
TUTTI_API tuttiResult_t tuttiCommRevoke(tuttiComm_t comm, int revokeFlags);

/* The ranks of `comm` and new ones form a new communicator of nRanks ranks, collective over both. Each rank of `comm`
 * keeps its number and gives `comm`, with rank -1 or its number; new ranks give comm NULL and a rank of their own from
 * the size of `comm` on, below nRanks. uniqueId is from tuttiGetUniqueId, once for each call: all new ranks give it,
 * and one rank of `comm` at least, the others NULL or the same. `comm` stays as it is, and is used to pass the id on,
 * in the order of its operations; it has to work: after a loss tuttiCommShrink comes first. Blocks until the new group
 * has formed, at most the limit for creation; new ranks are told if `comm` fails before. config as for tuttiCommSplit,
 * for new ranks as for tuttiCommInitRankConfig, also for config.blocking = 0. Errors: tuttiInvalidArgument (newcomm is
 * NULL, nRanks is less than `comm` has, rank does not fit, a new rank without uniqueId, not a live communicator,
 * config), tuttiInvalidUsage (no rank of `comm` gave uniqueId, or they gave different ones), and those of
 * tuttiAllGather and tuttiCommInitRankConfig. */
TUTTI_API tuttiResult_t tuttiCommGrow(tuttiComm_t comm, int nRanks, const tuttiUniqueId* uniqueId, int rank,
                                      tuttiComm_t* newcomm, const tuttiConfig_t* config);

#ifdef __cplusplus
}
#endif
#endif
