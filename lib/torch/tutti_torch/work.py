"""Operations under way: the Work objects that c10d hands to its callers.

A Tutti stream's thread reports that an operation is done (library.when_done). It wakes the waiting threads and has the
future, if one was requested, completed by a thread of the pool below: callbacks of futures may wait for later
operations of the same stream, which that stream's own thread must not do.
"""
from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import library
from .errors import TuttiError

NO_TIMEOUT = timedelta(0)


class TuttiWork(dist.Work):
    """One operation. It keeps what the operation reads and writes alive until it is done."""

    # The limit of a wait() without one, and the operation's name in its error.
    limit = NO_TIMEOUT
    what = "the operation"
    # Initial state, in the class because most operations end within their call and change none of it.
    _source = -1
    _error: BaseException | None = None
    _is_error_seen = False
    _running: threading.Lock | None = None
    _future: torch.futures.Future[Any] | None = None
    _gate: torch.futures.Future[None] | None = None

    def __init__(self, results: list[torch.Tensor]) -> None:
        super().__init__()
        self._results = results

    # ---- for the backend ----

    def begin(self) -> TuttiWork:
        """Marks the work as under way until complete() is called."""
        self._running = threading.Lock()
        self._running.acquire()
        return self

    def complete(self, error: BaseException | None = None, source_rank: int = -1) -> None:
        """Called once, by the thread that has finished the operation."""
        self._error, self._source = error, source_rank
        running, self._running = self._running, None
        assert running is not None, "this work was never started"
        running.release()
        # From here on get_future() sees that the work is done.
        if self._gate is not None:
            completers.submit(self._open_gate)

    def _open_gate(self) -> None:
        with _gates:
            gate, self._gate = self._gate, None
        if gate is not None:
            gate.set_result(None)

    def _settle(self, _: object) -> list[torch.Tensor]:
        # What is raised here becomes the future's error; Future.set_exception would not reach C++.
        if self._error is not None:
            self._is_error_seen = True
            raise self._error
        return self._results

    # ---- for c10d and its callers ----

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        running = self._running
        if running is not None:
            timeout = timeout if timeout > NO_TIMEOUT else self.limit
            limit = timeout.total_seconds() if timeout > NO_TIMEOUT else -1
            if not running.acquire(timeout=limit):
                raise TuttiError(f"{self.what} has not finished within {limit:g} s; it is still running", library.TIMEOUT)
            running.release()
        if self._error is not None:
            self._is_error_seen = True
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is None:
            gate: torch.futures.Future[None] = torch.futures.Future()
            self._future = gate.then(self._settle)
            self._gate = gate
            # complete() looks at _gate after it has cleared _running, so one of the two opens it.
            if self._running is None:
                self._open_gate()
        return self._future

    def is_completed(self) -> bool:
        return self._running is None

    def is_success(self) -> bool:
        return self._running is None and self._error is None

    def exception(self) -> BaseException | None:
        self._is_error_seen = True
        return self._error

    def unseen_error(self) -> BaseException | None:
        """The error of a failed operation, if nobody has asked for it."""
        return None if self._is_error_seen else self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank


class _Completers:
    """Threads that complete futures. One is always free, since a callback may block for a long time."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._guard = threading.Condition()
        self._idle = 0
        self._tasks_left = 0

    def submit(self, task: Callable[[], None]) -> None:
        with self._guard:
            self._tasks_left += 1
            if self._idle == 0:
                threading.Thread(target=self._run, name="tutti-futures", daemon=True).start()
            else:
                self._idle -= 1
        self._tasks.put(task)

    def _run(self) -> None:
        while True:
            self._tasks.get()()
            with self._guard:
                self._idle += 1
                self._tasks_left -= 1
                self._guard.notify_all()

    def drain(self, limit: float) -> None:
        """Waits for up to `limit` seconds until no callbacks run any more."""
        with self._guard:
            self._guard.wait_for(lambda: self._tasks_left == 0, limit)


_gates = threading.Lock()
completers = _Completers()
# A forked child has none of its parent's threads.
os.register_at_fork(after_in_child=completers.__init__)  # type: ignore[misc]
