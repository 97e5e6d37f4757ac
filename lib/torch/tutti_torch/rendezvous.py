"""How the ranks of a group find each other: through the c10d store that init_process_group was given."""
from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from . import library
from .errors import TuttiError, check

_ID = "tutti/id"
# In front of what rank 0 puts under _ID.
_GOOD, _BAD = b"+", b"-"
# Rank 0 waits so long for the others to have read that the group does not form: its store may end with it.
_LAST_WORD = timedelta(seconds=2)


def make_id() -> bytes:
    unique = library.UniqueId()
    check(library.load().tuttiGetUniqueId(ctypes.byref(unique)))
    return bytes(unique)


def _here(rank: int) -> str:
    return f"tutti/here/{rank}"


def _read(rank: int) -> str:
    return f"tutti/read/{rank}"


def _absent(store: dist.Store, ranks: list[int], limit: timedelta) -> list[int]:
    """The ranks that do not come within the limit."""
    try:
        store.wait([_here(rank) for rank in ranks], limit)
        return []
    except RuntimeError:
        return [rank for rank in ranks if not store.check([_here(rank)])]


def exchange_id(store: dist.Store, rank: int, size: int, limit: timedelta) -> bytes:
    """Collective: an id that rank 0 makes when all ranks are there. An error names those that never came."""
    if rank != 0:
        store.set(_here(rank), "1")
        try:
            # Rank 0 needs a moment to say who is missing.
            store.wait([_ID], limit + timedelta(seconds=5))
        except RuntimeError as error:
            raise TuttiError(
                f"rank 0 of the group did not come within {limit.total_seconds():g} s ({error})", library.TIMEOUT
            ) from error
        answer = bytes(store.get(_ID))
        if answer[:1] != _GOOD:
            store.set(_read(rank), "1")
            raise TuttiError(answer[1:].decode(), library.TIMEOUT)
        return answer[1:]
    absent = _absent(store, list(range(1, size)), limit)
    try:
        if absent:
            raise TuttiError(
                f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))} of {size} never came to the group within "
                f"{limit.total_seconds():g} s: see whether they run, and call init_process_group or new_group",
                library.TIMEOUT,
            )
        unique = make_id()
    except Exception as error:
        store.set(_ID, (_BAD + str(error).encode()).decode(errors="replace"))
        with contextlib.suppress(RuntimeError):
            store.wait([_read(peer) for peer in range(1, size) if peer not in absent], _LAST_WORD)
        raise
    store.set(_ID, _GOOD + unique)
    return unique


def forget_id(store: dist.Store, rank: int) -> None:
    """Called when the group has formed: another one may meet at the same keys."""
    keys = [_here(rank)] if rank else [_ID]
    for key in keys:
        try:
            store.delete_key(key)
        except RuntimeError:
            pass  # Some stores cannot delete; their keys are used once.


def poll_for_id(store: dist.Store, key: str, go_on: Callable[[], bool]) -> bytes | None:
    """The value of a key that another rank may set at any time, or None once go_on() is false. It never blocks within the
    store, whose one connection all threads share."""
    pause_s = 0.0005
    while go_on():
        if store.check([key]):
            return bytes(store.get(key))
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.02)
    return None
