"""A group of ranks and its operations. Any thread may call them; all ranks call them in one order."""
from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from . import library
from .buffers import fitting, movable, reducible, view
from .errors import TuttiError, check

OPS = {"sum": library.SUM, "prod": library.PROD, "max": library.MAX, "min": library.MIN, "avg": library.AVG}

_numbers = itertools.count()
# Open communicators, as keys: in the order in which all ranks created them, and therefore end them at exit.
_open: dict[Communicator, None] = {}


class Handle:
    """An operation under way, from a call with async_op=True. It keeps the arrays alive until it is done."""

    def __init__(self, comm: Communicator, result: Any, keep: tuple[Any, ...]) -> None:
        self._comm, self._result, self._keep = comm, result, keep
        self._done = threading.Event()
        self._code = library.SUCCESS

    def _complete(self, code: int) -> None:
        self._code, self._keep = code, ()
        self._done.set()

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        """Returns what the call without async_op returns, or raises its error."""
        if not self._done.wait(timeout):
            raise TuttiError(f"the operation has not finished within {timeout:g} s; it is still running", library.TIMEOUT)
        if self._code != library.SUCCESS and self._comm._ended:
            raise TuttiError(self._comm._ended, self._code)
        check(self._code, self._comm._comm)
        return self._result


class Communicator:
    """The ranks that a launcher has started; see init(). `rank` is this process's number, `size` the number of ranks."""

    def __init__(self) -> None:
        self._api = library.load()
        self._comm: int | None = None
        self._stream: int | None = None
        self._ended = ""  # after the end: why operations still under way have no result
        comm, number = ctypes.c_void_p(), ctypes.c_int()
        check(self._api.tuttiCommInitFromEnv(ctypes.byref(comm), None))
        self._comm = comm.value
        check(self._api.tuttiCommUserRank(comm, ctypes.byref(number)))
        self.rank = number.value
        check(self._api.tuttiCommCount(comm, ctypes.byref(number)))
        self.size = number.value
        self.number = next(_numbers)  # counted in this process
        self._guard = threading.Lock()
        _open[self] = None

    def all_reduce(self, array: Any, op: str = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """The ranks' arrays combined, on every rank: into `out`, or in place. op: sum, prod, max, min or avg."""
        send, recv = self._in_place(array, out)
        call = (send.size, reducible(send, "array"), operator(op))
        return self._run("tuttiAllReduce", (send, recv), call, array if out is None else out, async_op)

    def reduce(self, array: Any, op: str = "sum", root: int = 0, *, out: Any = None, async_op: bool = False) -> Any:
        """The ranks' arrays combined, on rank `root`: into `out`, or in place. Elsewhere nothing is written."""
        if self.rank == root:
            send, recv = self._in_place(array, out)
        else:
            send = recv = view(array, "array")
        call = (send.size, reducible(send, "array"), operator(op), root)
        return self._run("tuttiReduce", (send, recv), call, array if out is None else out, async_op)

    def broadcast(self, array: Any, root: int = 0, *, async_op: bool = False) -> Any:
        """Copies the root's array into every rank's."""
        buffer = view(array, "array", is_written=self.rank != root)
        return self._run("tuttiBcast", (buffer,), (*movable(buffer, "array"), root), array, async_op)

    def all_gather(self, array: Any, *, out: Any = None, async_op: bool = False) -> Any:
        """The ranks' arrays, all of one size, one after the other: into `out`, or a new array of shape (size, ...)."""
        return self._gather("tuttiAllGather", array, out, (), async_op)

    def gather(self, array: Any, root: int = 0, *, out: Any = None, async_op: bool = False) -> Any:
        """As all_gather, but on rank `root` only; elsewhere the result is None."""
        return self._gather("tuttiGather", array, out, (root,), async_op)

    def scatter(self, array: Any, root: int = 0, *, out: Any, async_op: bool = False) -> Any:
        """Each rank gets one of `size` equal parts of the root's array in `out`. `array` may be None except on the root."""
        recv = view(out, "out", is_written=True)
        count = movable(recv, "out")
        send = view(array, "array") if self.rank == root else recv
        if self.rank == root and (send.dtype != recv.dtype or send.size != recv.size * self.size):
            raise TuttiError(f"array has {send.size} elements of type {send.dtype}; it must have {self.size} times as many as "
                             f"out, which has {recv.size} of {recv.dtype}")
        return self._run("tuttiScatter", (send, recv), (*count, root), out, async_op)

    def reduce_scatter(self, array: Any, op: str = "sum", *, out: Any = None, async_op: bool = False) -> Any:
        """The ranks' arrays combined; each rank gets one of `size` equal parts: in `out`, or a new array."""
        send = view(array, "array")
        shape = (self._share(send), *send.shape[1:])
        recv = fitting(out, send, shape)
        call = (recv.size, reducible(send, "array"), operator(op))
        return self._run("tuttiReduceScatter", (send, recv), call, recv if out is None else out, async_op)

    def all_to_all(self, array: Any, *, out: Any = None, async_op: bool = False) -> Any:
        """Part r of `size` equal parts goes to rank r; the result has the parts received, in rank order."""
        send = view(array, "array")
        self._share(send)
        recv = fitting(out, send, send.shape)
        count, code = movable(send, "array")
        call = (count // self.size, code)
        return self._run("tuttiAlltoAll", (send, recv), call, recv if out is None else out, async_op)

    def barrier(self, *, async_op: bool = False) -> Any:
        """Returns when all ranks have called it."""
        return self._run("tuttiBarrier", (), (), None, async_op)

    def send(self, array: Any, peer: int, *, async_op: bool = False) -> Any:
        """Sends to rank `peer`, which calls recv. It may wait until that rank does: two ranks that send to each other need
        sendrecv."""
        buffer = view(array, "array")
        return self._run("tuttiSend", (buffer,), (*movable(buffer, "array"), peer), array, async_op)

    def recv(self, array: Any, peer: int, *, async_op: bool = False) -> Any:
        """Receives into `array` as much as rank `peer` sends."""
        buffer = view(array, "array", is_written=True)
        return self._run("tuttiRecv", (buffer,), (*movable(buffer, "array"), peer), array, async_op)

    def sendrecv(self, array: Any, to: int, out: Any, of: int, *, async_op: bool = False) -> Any:
        """Sends `array` to rank `to` and at the same time receives from rank `of` into `out`, which it returns.
        The two must not overlap."""
        send, recv = view(array, "array"), view(out, "out", is_written=True)
        messages = (("tuttiSend", send, movable(send, "array"), to), ("tuttiRecv", recv, movable(recv, "out"), of))

        def issue(stream: int | None) -> None:
            self._api.tuttiGroupStart()
            try:
                for name, buffer, count, peer in messages:
                    self.call(name, buffer.ctypes.data, *count, peer, stream=stream)
            finally:
                code = self._api.tuttiGroupEnd()
            check(code)

        return self._launch(issue, (send, recv), out, async_op)

    def close(self) -> None:
        """Finishes what is under way, then waits until all ranks have closed. Runs at exit at the latest."""
        self._end(self._api.tuttiCommFinalize, self._api.tuttiCommDestroy)

    def abort(self) -> None:
        """Ends the group at once: operations fail with an error, here and on the other ranks."""
        self._end(self._api.tuttiCommAbort)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close() if kind is None else self.abort()

    def _in_place(self, array: Any, out: Any) -> tuple[np.ndarray, np.ndarray]:
        send = view(array, "array", is_written=out is None)
        return send, send if out is None else fitting(out, send, send.shape)

    def _share(self, send: np.ndarray) -> int:
        if send.ndim == 0 or send.shape[0] % self.size:
            raise TuttiError(f"array has the shape {send.shape}: its first dimension has to be a multiple of {self.size}, "
                             "the number of ranks")
        return send.shape[0] // self.size

    def _gather(self, name: str, array: Any, out: Any, root: tuple[int, ...], async_op: bool) -> Any:
        send = view(array, "array")
        call = (*movable(send, "array"), *root)
        if root and self.rank != root[0]:
            return self._run(name, (send, send), call, None, async_op)
        recv = fitting(out, send, (self.size, *send.shape))
        return self._run(name, (send, recv), call, recv if out is None else out, async_op)

    def _run(self, name: str, arrays: tuple[np.ndarray, ...], call: tuple[int, ...], result: Any, async_op: bool) -> Any:
        """Calls a function of the C API, which takes the arrays' addresses, then `call`."""
        addresses = [array.ctypes.data for array in arrays]

        def issue(stream: int | None) -> None:
            self.call(name, *addresses, *call, stream=stream)

        return self._launch(issue, arrays, result, async_op)

    def _launch(self, issue: Callable[[int | None], None], arrays: tuple[np.ndarray, ...], result: Any, async_op: bool) -> Any:
        if not async_op:
            issue(None)
            return result
        with self._guard:  # so that callbacks follow their operations
            if self._stream is None:
                stream = ctypes.c_void_p()
                check(self._api.tuttiStreamCreate(ctypes.byref(stream)))
                self._stream = stream.value
            issue(self._stream)
            handle = Handle(self, result, arrays)
            check(library.when_done(self._stream, handle._complete))
        return handle

    def call(self, name: str, *arguments: int, stream: int | None = None) -> None:
        """Calls a function of the C API; `arguments` are those before the communicator."""
        if self._comm is None:
            raise TuttiError("the communicator was closed", library.INVALID_USAGE)
        check(getattr(self._api, name)(*arguments, self._comm, stream))

    def _end(self, *ends: Any) -> None:
        comm, self._comm = self._comm, None
        if comm is None:
            return
        _open.pop(self, None)
        try:
            for end in ends[:-1]:
                check(end(comm), comm)
        finally:
            state = ctypes.c_int()
            self._api.tuttiCommGetAsyncError(comm, ctypes.byref(state))
            why = "the communicator was closed before the operation was done"
            self._ended = library.sentence(state.value, comm) if state.value else why
            ended = ends[-1](comm)  # even after an error, or it would never be freed
            if self._stream is not None:
                self._api.tuttiStreamDestroy(self._stream)
        check(ended)


def operator(op: str) -> int:
    if op not in OPS:
        raise TuttiError(f"op={op!r} is none of {', '.join(OPS)}")
    return OPS[op]


def init() -> Communicator:
    """Joins the ranks that a launcher has started: mpirun, srun or torchrun, or TUTTI_RANK, TUTTI_NRANKS and
    TUTTI_ROOT=host:port. Returns when all ranks have joined. The n-th call in each process joins the n-th group."""
    return Communicator()


@atexit.register
def _at_exit() -> None:
    """Ends all communicators before the interpreter exits: no callback may run later. Aborts after an uncaught exception."""
    failed = getattr(sys, "last_value", None) is not None
    for comm in list(_open):
        try:
            comm.abort() if failed else comm.close()
        except TuttiError as error:  # the other communicators must end, too
            print(error, file=sys.stderr)


os.register_at_fork(after_in_child=lambda: _open.clear())  # they belong to the parent, which ends them
