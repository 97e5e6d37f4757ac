"""How the ranks of a group find each other: through the c10d store that init_process_group was given."""
from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from . import library
from .errors import TuttiError, check

_log = logging.getLogger("tutti_torch")
_ID = "tutti/id"
# After this time the log says which ranks have not come.
_PATIENCE = timedelta(seconds=3)
# The first byte of what rank 0 stores under _ID.
_GOOD, _BAD = b"+", b"-"
# How long rank 0 waits for the others to read that the group does not form: its store may end with it.
_LAST_WORD = timedelta(seconds=2)


def make_id() -> bytes:
    unique = library.UniqueId()
    check(library.load().tuttiGetUniqueId(ctypes.byref(unique)))
    return bytes(unique)


def _here(rank: int) -> str:
    return f"tutti/here/{rank}"


def _read(rank: int) -> str:
    return f"tutti/read/{rank}"


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


class Meeting:
    """`rank` of `size` at the store; `lost` returns the ranks that another group knows to have died; `label` says in
    errors which ranks of the job these are."""

    def __init__(self, store: dist.Store, rank: int, size: int, lost: Callable[[], list[int]], label: str) -> None:
        self._store, self._rank, self._size, self._lost, self._label = store, rank, size, lost, label

    def _wait(self, keys: list[str], limit: timedelta, of: list[int]) -> bool:
        """Waits until these ranks' keys are set; false after the limit. An error names ranks that have died."""
        end = time.monotonic() + limit.total_seconds()

        def go_on() -> bool:
            dead = sorted(set(self._lost()) & set(of))
            if dead and not self._store.check(keys):
                sentence = f"{_named(dead)} died before the group formed{self._label}"
                raise TuttiError(sentence, library.REMOTE_ERROR)
            return time.monotonic() <= end

        return poll(self._store, keys, go_on, 0.05) or self._store.check(keys)

    def _absent(self, ranks: list[int], limit: timedelta) -> list[int]:
        """The ranks that do not come within the limit."""
        if self._wait([_here(rank) for rank in ranks], limit, ranks):
            return []
        return [rank for rank in ranks if not self._store.check([_here(rank)])]

    def _wait_for_all(self, limit: timedelta) -> list[int]:
        """Like _absent for all other ranks; logs which ones are late."""
        absent = self._absent(list(range(1, self._size)), min(limit, _PATIENCE))
        if not absent or limit <= _PATIENCE:
            return absent
        _log.warning(
            "%s of %d did not join the group within %g s; still waiting",
            _named(absent), self._size, _PATIENCE.total_seconds(),
        )
        return self._absent(absent, limit - _PATIENCE)

    def _id_of_rank_0(self, limit: timedelta) -> bytes:
        self._store.set(_here(self._rank), "1")
        # Rank 0 needs a moment to say which ranks are missing.
        if not self._wait([_ID], limit + timedelta(seconds=5), list(range(self._size))):
            sentence = f"rank 0 of the group did not join within {limit.total_seconds():g} s"
            raise TuttiError(sentence, library.TIMEOUT)
        answer = bytes(self._store.get(_ID))
        if answer[:1] != _GOOD:
            self._store.set(_read(self._rank), "1")
            raise TuttiError(answer[1:].decode(), library.TIMEOUT)
        return answer[1:]

    def exchange_id(self, limit: timedelta) -> bytes:
        """Collective: the id that rank 0 makes once all ranks have come. An error names those that never came."""
        if self._rank != 0:
            return self._id_of_rank_0(limit)
        absent: list[int] = []
        try:
            absent = self._wait_for_all(limit)
            if absent:
                raise TuttiError(
                    f"{_named(absent)} of {self._size} never joined the group within "
                    f"{limit.total_seconds():g} s: check that they are running and call init_process_group or new_group",
                    library.TIMEOUT,
                )
            unique = make_id()
        except Exception as error:
            self._store.set(_ID, (_BAD + str(error).encode()).decode(errors="replace"))
            absent += self._lost()
            with contextlib.suppress(RuntimeError):
                self._store.wait([_read(peer) for peer in range(1, self._size) if peer not in absent], _LAST_WORD)
            raise
        self._store.set(_ID, _GOOD + unique)
        return unique


def forget_id(store: dist.Store, rank: int) -> None:
    """Called when the group has formed: another one may meet at the same keys."""
    with contextlib.suppress(RuntimeError):  # some stores cannot delete; their keys are used once
        store.delete_key(_here(rank) if rank else _ID)


def poll(store: dist.Store, keys: list[str], go_on: Callable[[], bool], most_pause_s: float) -> bool:
    """Whether other ranks set the keys before go_on() is false. It never blocks within the store, whose one connection
    all threads share, and which logs each wait that fails."""
    pause_s = 0.0005
    while go_on():
        if store.check(keys):
            return True
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, most_pause_s)
    return False
