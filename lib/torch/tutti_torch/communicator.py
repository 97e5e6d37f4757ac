"""A Tutti communicator for one c10d group, and the stream on which its asynchronous operations run.

Any thread may use it. Its creator ends it by close() or abort(); afterwards every call raises an error that says so.
"""
from __future__ import annotations

import atexit
import ctypes
import itertools
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from . import library
from .errors import TuttiError, check, error_of
from .places import set_place_at_end
from .work import TuttiWork, completers

_log = logging.getLogger("tutti_torch")
# Ranks end at different times (one writes a checkpoint first), but one that never comes must not hold up the others.
CLOSE_LIMIT_S = 60.0
EXIT_LIMIT_S = 5.0

# Communicators that have not ended, by number.
_open: weakref.WeakValueDictionary[int, Communicator] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def limit_s(timeout: timedelta, variable: str) -> int:
    """c10d's time-out in whole seconds. Its default gives way to Tutti's environment variable."""
    if timeout == dist.default_pg_timeout and os.environ.get(variable):
        return library.UNDEFINED_INT
    return max(1, min(math.ceil(timeout.total_seconds()), 2**31 - 1))


class Communicator:
    """Rank `rank` of `size` in the group that meets at `unique`. broken() is another communicator's error that keeps
    this one from forming, or None. `order` sorts communicators that ranks create in different orders."""

    # Why there is no communicator, if it was not destroyed.
    _none = ""

    def __init__(
        self, unique: bytes, rank: int, size: int, options: library.Config, label: str = "",
        broken: Callable[[], BaseException | None] = lambda: None, order: bytes = b""
    ) -> None:
        self._api = library.load()
        self.label = label
        # The first operation that failed and for which nobody may have waited.
        self.failed: TuttiWork | None = None
        self._guard = threading.Lock()
        self._stream: int | None = None
        self._comm: int | None = None
        self._number = next(_numbers)
        self.order = order, self._number
        comm = ctypes.c_void_p()
        unique_id = library.UniqueId.from_buffer_copy(unique)
        code = self._api.tuttiCommInitRankConfig(ctypes.byref(comm), size, unique_id, rank, ctypes.byref(options))
        if code not in (library.SUCCESS, library.IN_PROGRESS):
            check(code, label)
        self._comm = comm.value

        def state() -> int:
            error = broken()
            if error is not None:
                raise error
            return self._state()

        try:
            code = self._poll(state, math.inf)
            if code != library.SUCCESS:
                raise self.error(code)
        except BaseException:
            self.abort()
            raise
        _open[self._number] = self

    @property
    def handle(self) -> int:
        if self._comm is None:
            raise TuttiError(self._none or f"the group was destroyed{self.label}", library.INVALID_USAGE)
        return self._comm

    @property
    def stream(self) -> int:
        """Created when first needed."""
        if self._stream is None:
            with self._guard:
                if self._stream is None:
                    stream = ctypes.c_void_p()
                    check(self._api.tuttiStreamCreate(ctypes.byref(stream)), self.label)
                    self._stream = stream.value
        assert self._stream is not None
        return self._stream

    def check(self, code: int) -> None:
        check(code, self.label)

    def error(self, code: int) -> TuttiError:
        """The exception for the result of an operation that ran on the stream."""
        return error_of(code, self._comm, self.label)

    def async_error(self) -> TuttiError | None:
        """The error that broke the communicator, or None."""
        code = self._state()
        return None if code in (library.SUCCESS, library.IN_PROGRESS) else self.error(code)

    def broken(self) -> TuttiError | None:
        """async_error(); raises if the communicator was destroyed or aborted."""
        return self.async_error() if self.handle else None

    def lost_ranks(self, size: int) -> list[int]:
        """The ranks of this group that have died, as far as this rank knows, in the order in which it learned of them."""
        ranks, count = (ctypes.c_int * size)(), ctypes.c_int()
        self.check(self._api.tuttiCommLostRanks(self.handle, ranks, ctypes.byref(count)))
        return ranks[: count.value]

    def _poll(self, state: Callable[[], int], limit: float) -> int:
        """Polls state() until it is not tuttiInProgress, or for `limit` seconds. Python handles signals meanwhile."""
        pause_s, end = 0.0001, time.monotonic() + limit
        while (code := state()) == library.IN_PROGRESS and time.monotonic() < end:
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.005)
        return code

    def _state(self) -> int:
        code = ctypes.c_int()
        self._api.tuttiCommGetAsyncError(self._comm, ctypes.byref(code))
        return code.value

    def close(self, limit: float = CLOSE_LIMIT_S) -> None:
        """Ends the communicator in order: waits for its operations, then for the other ranks, each for up to `limit` s."""
        if self._comm is None:
            return
        end, stream = self._api.tuttiCommDestroy, self._stream
        try:
            if stream is not None and self._poll(lambda: self._api.tuttiStreamQuery(stream), limit) == library.IN_PROGRESS:
                _log.warning("unawaited operations are still running: aborting%s", self.label)
                end = self._api.tuttiCommAbort
            else:
                self._finalize(limit)
        except TuttiError as error:
            # Callers that waited for an operation have this error already; others may want to know it.
            _log.info("while destroying the group: %s", error)
        unseen = self.failed.unseen_error() if self.failed is not None else None
        if unseen is not None:
            _log.warning("an asynchronous operation failed, and nobody has called its wait(): %s", unseen)
        self._free(end)

    def _finalize(self, limit: float) -> None:
        code = self._api.tuttiCommFinalize(self._comm)
        if code == library.IN_PROGRESS:
            code = self._poll(self._state, limit)
        if code == library.IN_PROGRESS:
            _log.warning("not all ranks have destroyed the group within %g s%s", limit, self.label)
        elif code != library.SUCCESS:
            raise self.error(code)

    def abort(self) -> None:
        """Ends the communicator at once: operations end with an error, which at the peers names this rank."""
        if self._comm is not None:
            self._free(self._api.tuttiCommAbort)

    def _free(self, end: ctypes._FuncPointer) -> None:
        with self._guard:
            comm, self._comm = self._comm, None
            stream, self._stream = self._stream, None
        if comm is None:
            return
        _open.pop(self._number, None)
        # An abort ends the operation that the stream runs; tuttiCommDestroy waits for it anyway.
        if end is self._api.tuttiCommAbort:
            end(comm)
        if stream is not None:
            self._api.tuttiStreamDestroy(stream)
        if end is not self._api.tuttiCommAbort:
            end(comm)


class NoCommunicator(Communicator):
    """Stands in for a communicator that does not exist yet: using it raises this sentence."""

    def __init__(self, sentence: str) -> None:
        self._api, self._guard, self._none, self.label = library.load(), threading.Lock(), sentence, ""
        self._comm = self._stream = self.failed = None


def _at_exit() -> None:
    """No Tutti thread may call into an interpreter that is shutting down: one that returns from a future's callback
    into torch's C++ would end the process with SIGABRT. A program that failed tells its peers."""
    error = getattr(sys, "last_value", None)
    failed = error is not None
    if _open:
        set_place_at_end(error)
    # In the same order on all ranks, or they would wait for each other.
    for communicator in sorted(_open.values(), key=lambda each: each.order):
        if failed:
            communicator.abort()
        else:
            communicator.close(EXIT_LIMIT_S)
    completers.drain(EXIT_LIMIT_S)


atexit.register(_at_exit)
