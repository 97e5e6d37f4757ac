"""A barrier that names absent ranks. It goes through the store, so that the group stays usable when a rank is late."""
from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from . import library
from .errors import TuttiError
from .rendezvous import poll

# For ranks other than 0: rank 0 may announce the outcome only after its own limit has passed.
_GRACE_S = 10
_GONE = "died or left the group"
Lost = Callable[[], list[int]]


def _comes(store: dist.Store, key: str, peer: int, end: float, lost: Lost) -> bool:
    """Whether the peer sets the key, before `end` and before it dies. Polls: threads that open channels need the store
    meanwhile."""
    return poll(store, [key], lambda: peer not in lost() and time.monotonic() < end, 0.02) or store.check([key])


def _named(ranks: list[int]) -> str:
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def monitored_barrier(
    store: dist.Store, rank: int, size: int, number: int, timeout: timedelta, wait_all_ranks: bool, lost: Lost
) -> None:
    """Collective; `number` counts the group's calls. Rank 0 waits for all, the others for rank 0. If ranks do not come
    in time, all ranks get an error that names the first one that rank 0 misses or, with wait_all_ranks, all of them.
    Nobody waits for a rank that is in lost(), which raises when the group was destroyed."""
    key, end = f"tutti/monitored/{number}", time.monotonic() + timeout.total_seconds()
    if rank != 0:
        store.set(f"{key}/{rank}", "1")
        sentence = ""
        missed: RuntimeError | None = None  # the error if the store has gone
        try:
            if _comes(store, f"{key}/out", 0, end + _GRACE_S, lost):
                sentence = bytes(store.get(f"{key}/out")).decode()
        except TuttiError:  # of lost()
            raise
        except RuntimeError as error:
            missed = error
        if sentence != "ok":
            died = 0 in lost()
            why = sentence or "it " + (_GONE if died else f"did not answer within {timeout.total_seconds():g} s")
            raise TuttiError(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0: {why}",
                library.REMOTE_ERROR if died else library.TIMEOUT,
            ) from missed
        return
    limit_ms = int(timeout.total_seconds() * 1000)
    absent: list[int] = []
    for peer in range(1, size):
        if _comes(store, f"{key}/{peer}", peer, end, lost):
            store.delete_key(f"{key}/{peer}")
            continue
        absent.append(peer)
        if not wait_all_ranks:
            break
    if not absent:
        store.delete_key(f"tutti/monitored/{number - 1}/out")  # all have read it
        store.set(f"{key}/out", "ok")
        return
    dead = [peer for peer in absent if peer in lost()]
    why = f"({_named(dead).lower()} {_GONE})" if dead else f"in {limit_ms} ms"
    sentence = f"{_named(absent)} failed to pass monitoredBarrier {why}"
    if limit_ms <= 0:
        sentence = f"Rank 0 timed out in monitoredBarrier: its time-out is {limit_ms} ms"
    store.set(f"{key}/out", sentence)
    raise TuttiError(sentence, library.REMOTE_ERROR if dead else library.TIMEOUT)
