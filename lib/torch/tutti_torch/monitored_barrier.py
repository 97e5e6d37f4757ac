"""A barrier that names absent ranks. It goes through the store, so that the group stays usable when a rank is late."""
from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

from . import library
from .errors import TuttiError
from .rendezvous import poll

# For ranks other than 0: rank 0 may announce the outcome only after its own limit has passed.
_GRACE_S = 10


def _comes(store: dist.Store, key: str, end: float) -> bool:
    """Whether another rank sets the key before `end`. Polls: threads that open channels need the store meanwhile."""
    return poll(store, [key], lambda: time.monotonic() < end, 0.02) or store.check([key])


def monitored_barrier(
    store: dist.Store, rank: int, size: int, number: int, timeout: timedelta, wait_all_ranks: bool
) -> None:
    """Collective; `number` counts the group's calls. Rank 0 waits for all, the others for rank 0. If ranks do not come
    in time, all ranks get an error that names the first one that rank 0 misses or, with wait_all_ranks, all of them."""
    key, end = f"tutti/monitored/{number}", time.monotonic() + timeout.total_seconds()
    if rank != 0:
        store.set(f"{key}/{rank}", "1")
        sentence = f"it did not answer within {timeout.total_seconds():g} s"
        missed: RuntimeError | None = None  # the error if the store has gone
        try:
            if _comes(store, f"{key}/out", end + _GRACE_S):
                sentence = bytes(store.get(f"{key}/out")).decode()
        except RuntimeError as error:
            missed = error
        if sentence != "ok":
            raise TuttiError(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0: {sentence}",
                library.TIMEOUT,
            ) from missed
        return
    limit_ms = int(timeout.total_seconds() * 1000)
    absent: list[int] = []
    for peer in range(1, size):
        if _comes(store, f"{key}/{peer}", end):
            store.delete_key(f"{key}/{peer}")
            continue
        absent.append(peer)
        if not wait_all_ranks:
            break
    if not absent:
        store.set(f"{key}/out", "ok")
        return
    ranks = f"Rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"
    sentence = f"{ranks} failed to pass monitoredBarrier in {limit_ms} ms"
    if limit_ms <= 0:
        sentence = f"Rank 0 timed out in monitoredBarrier: its time-out is {limit_ms} ms"
    store.set(f"{key}/out", sentence)
    raise TuttiError(sentence, library.TIMEOUT)
