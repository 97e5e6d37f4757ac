"""Where a group's operations run: for host memory on the caller's thread or on a stream of Tutti's own, for a CUDA
device in the order of torch's streams. A lane is one of them: its communicator, and how it launches.

On a CUDA device nothing blocks the caller. A synchronous operation takes its place in torch's current stream. An
asynchronous one runs on the lane's own stream, which first waits for the current stream; Work.wait() makes the then
current stream wait for the operation. Memory that an operation uses stays alive until the device is done with it.
"""
from __future__ import annotations

import collections
import ctypes
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Optional

import torch
import torch.distributed as dist

from . import library
from .communicator import Communicator
from .errors import TuttiError, check, error_of
from .places import called
from .rendezvous import make_id
from .tensors import check_dense
from .work import NO_TIMEOUT, TuttiWork

Stream = Optional[int]
Issue = Callable[[int, Stream], None]
Finish = Optional[Callable[[], None]]
Broken = Callable[[], Optional[BaseException]]
# Rank 0's message to those that join a device: a tuttiResult_t, and the id or why there is none.
_SAID_BYTES = 1024


class Lane:
    """What both kinds have in common."""

    _launch: Callable[..., dist.Work]

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.check = communicator.check

    def launch(
        self, what: str, tensors: Sequence[torch.Tensor], is_async: bool, issue: Issue, results: list[torch.Tensor],
        finish: Finish = None, keep: object = None
    ) -> Any:
        """Launches `what` on these tensors: issue(handle, stream) calls Tutti's functions, and finish() runs when they
        are done: in host memory on the stream's thread if is_async; on a device it only enqueues copies, on the stream
        that was given to issue. `keep` has to stay alive until then."""
        comm = self.communicator.handle
        return self._launch(is_async, comm, called(what, tensors, issue), results, finish, keep)

    def calls(self, *calls: tuple[Any, ...]) -> Issue:
        """Tutti's functions, each with what comes before its communicator, as an `issue` of launch()."""

        def issue(comm: int, stream: Stream) -> None:
            for function, *arguments in calls:
                self.check(function(*arguments, comm, stream))

        return issue

    def close(self) -> None:
        self.communicator.close()


class HostLane(Lane):
    def _launch(self, is_async: bool, comm: int, issue: Issue, results: Any, finish: Finish, keep: object) -> dist.Work:
        work = TuttiWork(results)
        if not is_async:
            issue(comm, None)
            if finish is not None:
                finish()
            return work
        communicator = self.communicator
        stream = communicator.stream
        try:
            issue(comm, stream)
        except BaseException:
            # What it has launched before its error still uses this memory.
            library.when_done(stream, lambda _, used=(issue, keep, results): None)
            raise
        work.begin()

        def done(code: int) -> None:
            error: BaseException | None = None
            nonlocal keep
            try:
                if code != library.SUCCESS:
                    error = error_of(code, None, communicator.label)
                elif finish is not None:
                    finish()
            except BaseException as raised:  # noqa: BLE001  # no caller above can catch it
                error = raised
            keep = None
            work.complete(error)
            if error is not None and communicator.failed is None:
                communicator.failed = work

        check(library.when_done(stream, done))
        return work


class CudaWork(dist.Work):
    """One operation on a device. `stream` is the one it runs on, None if that was the current one; `caller` the one that
    was current then, in whose order torch reuses the memory that the operation uses (`used`)."""

    def __init__(self, lane: CudaLane, results: list[torch.Tensor], stream: Any = None, caller: Any = None) -> None:
        super().__init__()
        self._lane, self._stream, self._results = lane, stream, results
        self._caller, self.used = caller, list[object]()
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(lane.device) if stream is None else stream)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """The host does not wait, so there is no time-out except the communicator's own."""
        error = self.exception()
        if error is not None:
            raise error
        if self._stream is not None:
            current = torch.cuda.current_stream(self._lane.device)
            current.wait_event(self._event)
            if current == self._caller:  # what reuses the memory comes after the operation from now on
                self.used.clear()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self._lane.device])
        stream = torch.cuda.current_stream(self._lane.device) if self._stream is None else self._stream
        with torch.cuda.stream(stream):
            future.set_result(self._results)
        return future

    def is_completed(self) -> bool:
        return bool(self._event.query()) or self.exception() is not None

    def is_success(self) -> bool:
        return self.exception() is None and bool(self._event.query())

    def exception(self) -> BaseException | None:
        return self._lane.communicator.async_error()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()


class CudaLane(Lane):
    def __init__(self, communicator: Communicator, device: torch.device) -> None:
        super().__init__(communicator)
        self.device = device
        self._stream = torch.cuda.Stream(device)
        # Tensors that the device may still use: torch would reuse their memory as soon as nothing refers to them.
        self._in_use: collections.deque[tuple[Any, list[object]]] = collections.deque()
        self._guard = threading.Lock()

    def _launch(self, is_async: bool, comm: int, issue: Issue, results: Any, finish: Finish, keep: object) -> dist.Work:
        current = torch.cuda.current_stream(self.device)
        if not is_async:
            issue(comm, current.cuda_stream)
            if finish is not None:
                finish()
            return CudaWork(self, results)
        with self._guard:
            self._stream.wait_stream(current)
            try:
                with torch.cuda.stream(self._stream):
                    issue(comm, self._stream.cuda_stream)
                    if finish is not None:
                        finish()
            finally:  # after an error, too: what was launched before it still uses the memory
                work = CudaWork(self, results, self._stream, current)
                self._hold(work, [issue, finish, keep, results])
        return work

    def _hold(self, work: CudaWork, used: list[object]) -> None:
        """Keeps what the operation uses alive until it is done, or its caller's stream waits for it."""
        work.used = used
        if torch.cuda.is_current_stream_capturing():
            return  # events of a graph that is being captured cannot be queried: only the work keeps it
        while self._in_use and self._in_use[0][0].query():
            self._in_use.popleft()
        self._in_use.append((work._event, used))

    def close(self) -> None:
        super().close()  # waits for the device
        self._in_use.clear()


class Lanes:
    """A group's lanes: one for host memory, and one for each CUDA device that tensors come from."""

    def __init__(self, host: HostLane, rank: int, join: Callable[[bytes, int, Broken], Communicator]) -> None:
        """join(id, device, broken) makes the communicator for a device."""
        self.host = host
        self._rank, self._join = rank, join
        self._devices: dict[int, CudaLane] = {}
        self._guard = threading.Lock()

    def has(self, device: torch.device) -> bool:
        """Whether there have been operations on the device: its first lane is made by all ranks."""
        return device.type == "cpu" or device.index in self._devices

    def of(self, *tensors: torch.Tensor) -> Any:
        """The lane for tensors that all lie in one place."""
        device = tensors[0].device
        for tensor in tensors[1:]:
            if tensor.device != device:
                raise TuttiError(f"tensors on {device} and {tensor.device} in one operation: they must be on one device")
        if device.type == "cpu":
            return self.host
        check_dense(tensors[0])  # before _make(), which needs all ranks
        return self._on(device)

    def _on(self, device: torch.device) -> CudaLane:
        with self._guard:
            if device.index not in self._devices:
                self._devices[device.index] = self._make(device)
            return self._devices[device.index]

    def _make(self, device: torch.device) -> CudaLane:
        """Collective: all ranks come here with the same operation, the first one on a device."""
        host = self.host.communicator
        said = ctypes.create_string_buffer(_SAID_BYTES)
        if self._rank == 0:
            try:
                said.raw = bytes([library.SUCCESS]) + make_id()
            except TuttiError as error:  # the other ranks wait for the id
                said.raw = bytes([error.code]) + str(error).encode()[: _SAID_BYTES - 1]
        api = library.load()
        host.check(api.tuttiBcast(ctypes.addressof(said), _SAID_BYTES, library.UINT8, 0, host.handle, None))
        code, answer = said.raw[0], said.raw[1:]
        if code != library.SUCCESS:
            why = answer.rstrip(b"\0").decode(errors="replace")
            raise TuttiError(f"rank 0 could not make a communicator for {device}: {why}{host.label}", code)
        # A rank that never comes here, because it died or called something else, shows only in the host's communicator.
        return CudaLane(self._join(answer[: library.UNIQUE_ID_BYTES], device.index, host.broken), device)

    def close(self) -> None:
        for lane in [*self._devices.values(), self.host]:
            lane.close()

    def abort(self) -> None:
        for lane in [*self._devices.values(), self.host]:
            lane.communicator.abort()
