"""A barrier that says who did not come. It goes through the store, so that the group stays usable when somebody is late."""
from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist

from . import library
from .errors import TuttiError

# Rank 0 says what came out only after its own limit has passed.
_GRACE = timedelta(seconds=10)


def monitored_barrier(
    store: dist.Store, rank: int, size: int, number: int, timeout: timedelta, wait_all_ranks: bool
) -> None:
    """Collective; `number` counts the group's calls. Rank 0 waits for all, the others for rank 0. Raises on all ranks
    when one does not come in time: the first one that rank 0 misses or, with wait_all_ranks, all of them."""
    key = f"tutti/monitored/{number}"
    if rank != 0:
        store.set(f"{key}/{rank}", "1")
        missed: RuntimeError | None = None  # also that the store has gone
        try:
            store.wait([f"{key}/out"], timeout + _GRACE)
            sentence = bytes(store.get(f"{key}/out")).decode()
        except RuntimeError as error:
            sentence, missed = f"it did not come within {timeout.total_seconds():g} s", error
        if sentence != "ok":
            raise TuttiError(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                f"from rank 0: {sentence}",
                library.TIMEOUT,
            ) from missed
        return
    limit_ms = int(timeout.total_seconds() * 1000)
    absent: list[int] = []
    end = time.monotonic() + timeout.total_seconds()
    for peer in range(1, size):
        left = timedelta(seconds=max(0.001, end - time.monotonic()))
        try:
            store.wait([f"{key}/{peer}"], left)
            store.delete_key(f"{key}/{peer}")
        except RuntimeError:
            if store.check([f"{key}/{peer}"]):
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
