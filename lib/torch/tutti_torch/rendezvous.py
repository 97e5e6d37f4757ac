"""How the ranks of a group find each other: through the c10d store that init_process_group was given."""
from __future__ import annotations

import contextlib
import ctypes
import math
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from . import library
from .errors import TuttiError, check

_ID = "tutti/id"
# The first byte of what rank 0 stores under _ID.
_GOOD, _BAD = b"+", b"-"
# How long the forming communicator may take to tell of a death itself: it knows more of a rank that has joined.
_GRACE_S = 1.0


def make_id() -> bytes:
    unique = library.UniqueId()
    check(library.load().tuttiGetUniqueId(ctypes.byref(unique)))
    return bytes(unique)


class Meeting:
    """`rank` at the store; `loss` says, once it is so, which of its ranks another group has lost; `label` says in
    errors which ranks of the job these are."""

    def __init__(self, store: dist.Store, rank: int, loss: Callable[[], str | None], label: str) -> None:
        self._store, self._rank, self._loss, self._label = store, rank, loss, label
        self._patient_until = math.inf

    def _death(self) -> TuttiError | None:
        loss = self._loss()
        return loss and TuttiError(f"{loss} before the group formed{self._label}", library.REMOTE_ERROR)

    def exchange_id(self, limit: timedelta) -> bytes:
        """The id that rank 0 makes and stores. Those who meet by it name the ranks that never come."""
        if self._rank == 0:
            try:
                unique = make_id()
            except TuttiError as error:
                self._refuse(error)
                raise
            self._store.set(_ID, _GOOD + unique)
            return unique
        end = time.monotonic() + limit.total_seconds()

        def go_on() -> bool:
            death = self._death()
            if death is not None and not self._store.check([_ID]):
                raise death
            return time.monotonic() <= end

        if not poll(self._store, [_ID], go_on, 0.05) and not self._store.check([_ID]):
            sentence = (
                f"rank 0 of the group{self._label} did not join within {limit.total_seconds():g} s: "
                "did its process start, and does it create this group, too?"
            )
            raise TuttiError(sentence, library.TIMEOUT)
        answer = bytes(self._store.get(_ID))
        if answer[:1] != _GOOD:
            raise TuttiError(answer[1:].decode(), library.REMOTE_ERROR)
        return answer[1:]

    def _refuse(self, error: TuttiError) -> None:
        """Called by rank 0: who comes now fails at once."""
        with contextlib.suppress(RuntimeError):  # the store may be gone
            self._store.set(_ID, _BAD + str(error).encode())

    def explain(self, error: TuttiError) -> TuttiError:
        """Why the group has not formed. Another rank may have given up first, because of a death."""
        death = self._death()
        if death is not None and error.code == library.REMOTE_ERROR and "before the group formed" not in str(error):
            error = TuttiError(f"{death} ({error})", error.code)
        if error.code == library.TIMEOUT:
            error = TuttiError(f"{error}: all ranks must call init_process_group or new_group in time", error.code)
        if self._rank == 0:
            self._refuse(error)
        return error

    def broken(self) -> TuttiError | None:
        """Why the group will never form, if so."""
        death = self._death()
        if death is not None:
            self._patient_until = min(self._patient_until, time.monotonic() + _GRACE_S)
        return death if time.monotonic() > self._patient_until else None


def forget_id(store: dist.Store) -> None:
    """Called by rank 0 when the group has formed: another one may meet at the same key."""
    with contextlib.suppress(RuntimeError):  # some stores cannot delete; their keys are used once
        store.delete_key(_ID)


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
