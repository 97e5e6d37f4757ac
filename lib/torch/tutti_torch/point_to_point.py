"""send, recv, and recv from any rank.

c10d lets sends and receives of one pair overtake each other: by tag, by direction, and by threads. A Tutti communicator
runs one operation at a time. So each direction of each communicating pair has a communicator of its own and, on either
side, a thread. A message is a header (tag, bytes) and its bytes. The receiving thread reads a header only while a
receive is posted; messages that no receive has asked for yet are kept.

    sender                                    receiver
    Outbox: queue -> thread -> header, bytes -> thread -> Inbox: posted receives by tag; kept messages
"""
from __future__ import annotations

import functools
import queue
import re
import struct
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple, Optional

import torch
import torch.distributed as dist

from . import library
from .communicator import Communicator
from .errors import TuttiError
from .places import set_place
from .rendezvous import make_id, poll
from .tensors import write
from .work import TuttiWork

_HEADER = struct.Struct("<qQ")
# A channel may be silent for as long as the group lives; a caller that waits for a message has its own limit.
_FOREVER_S = 31_536_000
# How an error calls a rank that has left in good order: by where it was then (set_place_at_end(), shutdown()).
_LEFT = re.compile(r"\((its program has ended\)|destroy_process_group\b)")


def _key(source: int, target: int) -> str:
    return f"tutti/channel/{source}-{target}"


class _Send(NamedTuple):
    tensor: torch.Tensor
    tag: int
    work: TuttiWork
    place: int


class Receive:
    """A receive: from one rank or, posted to several inboxes, from any of their ranks."""

    def __init__(self, tensor: torch.Tensor, buffer: torch.Tensor, tag: int, work: TuttiWork, place: int) -> None:
        self.tensor, self.buffer, self.tag, self.work, self.place = tensor, buffer, tag, work, place
        self.inboxes: list[Inbox] = []

    def finish(self, source: int, arrived_bytes: int) -> None:
        expected = self.buffer.nbytes
        error: Optional[BaseException] = None
        try:
            if arrived_bytes != expected:
                sentence = f"rank {source} sent {arrived_bytes} bytes (tag {self.tag}), but the tensor to receive into has {expected}"
                raise TuttiError(sentence, library.INVALID_USAGE)
            if self.buffer is not self.tensor:
                write(self.tensor, self.buffer)
                if not self.tensor.is_cpu:
                    torch.cuda.current_stream(self.tensor.device).synchronize()
        except BaseException as raised:  # noqa: BLE001  # the waiting caller gets it
            error = raised
        self.work.complete(error, source)


class _Channel:
    """What both ends share: the peer, the communicator, and how the thread ends. Each has its _run() and _fail(error)."""

    def __init__(self, channels: Channels, peer: int) -> None:
        self.channels, self.peer = channels, peer
        self.comm: Optional[Communicator] = None
        self.error: Optional[BaseException] = None
        self.thread = threading.Thread(target=self._main, name=f"tutti-channel-{peer}", daemon=True)
        self.thread.start()

    def _main(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001  # the waiting caller gets it
            self._fail(error)

    def _connect(self, unique: bytes, rank: int) -> Communicator:
        label = f" (messages with rank {self.peer} of the group{self.channels.label})"
        options = library.config(self.channels.init_s, _FOREVER_S)
        # Ranks open channels in different orders; the id, which is the same on both, gives them one order at exit.
        broken = functools.partial(self.channels.group_error, self.peer)
        self.comm = Communicator(unique, rank, 2, options, label, broken, unique)
        return self.comm


class Outbox(_Channel):
    def __init__(self, channels: Channels, peer: int) -> None:
        self._queue: queue.SimpleQueue[Optional[_Send]] = queue.SimpleQueue()
        super().__init__(channels, peer)

    def send(self, tensor: torch.Tensor, tag: int, place: int) -> TuttiWork:
        work = TuttiWork([tensor]).begin()
        self._queue.put(_Send(tensor, tag, work, place))
        if self.error is not None:
            self._fail(self.error)
        return work

    def close(self, limit: float) -> None:
        """Sends what is still queued, then ends."""
        self._queue.put(None)
        self.thread.join(limit)

    def _run(self) -> None:
        api, comm = library.load(), None
        while (item := self._queue.get()) is not None:
            set_place(item.place)
            try:
                if comm is None:
                    broken = self.channels.group_error(self.peer)
                    if broken is not None:
                        raise broken
                    unique = make_id()
                    self.channels.store.set(_key(self.channels.rank, self.peer), unique)
                    comm = self._connect(unique, 0)
                header = torch.frombuffer(bytearray(_HEADER.pack(item.tag, item.tensor.nbytes)), dtype=torch.uint8)
                for data in (header, item.tensor):
                    if size := data.nbytes:
                        code = api.tuttiSend(data.data_ptr(), size, library.UINT8, 1, comm.handle, None)
                        comm.check(code)
            except BaseException as error:
                item.work.complete(error)
                raise
            item.work.complete()
            del header, data, item  # or the tensor would live until the next message
        raise self.channels.destroyed()  # to whoever sends later

    def _fail(self, error: BaseException) -> None:
        self.error = error
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item.work.complete(error)


class Inbox(_Channel):
    """A receive is posted in all of its inboxes or, once one has taken it, in none: the channels' lock guards them all."""

    def __init__(self, channels: Channels, peer: int) -> None:
        self._changed = threading.Condition(channels.guard)
        self._posted: list[Receive] = []
        self._kept: list[tuple[int, torch.Tensor]] = []
        self._closed = False
        super().__init__(channels, peer)

    # The next three: with the lock.

    def take_kept(self, tag: int) -> Optional[torch.Tensor]:
        """What has arrived is delivered even if the sender is gone by now."""
        for i, message in enumerate(self._kept):
            if message[0] == tag and not self._closed:
                return self._kept.pop(i)[1]
        return None

    def post(self, receive: Receive) -> None:
        self._posted.append(receive)
        self._changed.notify()

    def _take(self, tag: Optional[int] = None) -> Optional[Receive]:
        """The earliest receive, or the earliest of this tag."""
        taken = next((posted for posted in self._posted if tag is None or posted.tag == tag), None)
        for inbox in taken.inboxes if taken is not None else ():
            inbox._posted.remove(taken)
        return taken

    def bring(self, data: torch.Tensor, receive: Receive) -> None:
        if receive.buffer.nbytes == data.numel():
            write(receive.buffer, data.view(receive.buffer.dtype).view(receive.buffer.shape))
        receive.finish(self.peer, data.numel())

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self.comm is not None:
            self.comm.abort()
        self.thread.join(10)

    def _is_wanted(self) -> bool:
        """Whether a receive waits for a message; raises if the group can no longer bring one."""
        broken = self.channels.group_error(self.peer)
        if broken is not None:
            raise broken
        return bool(self._posted) and not self._closed

    def _run(self) -> None:
        api, comm = library.load(), None
        while True:
            with self._changed:
                while not (self._posted or self._closed):
                    self._changed.wait()
                if self._closed:
                    raise self.channels.destroyed()
                set_place(self._posted[0].place)
            if comm is None:
                store, key = self.channels.store, _key(self.peer, self.channels.rank)
                if not poll(store, [key], self._is_wanted, 0.02):
                    continue
                comm = self._connect(bytes(store.get(key)), 1)

            def receive_into(data: torch.Tensor, comm: Communicator = comm) -> None:
                if size := data.nbytes:
                    comm.check(api.tuttiRecv(data.data_ptr(), size, library.UINT8, 0, comm.handle, None))

            header = torch.empty(_HEADER.size, dtype=torch.uint8)
            receive_into(header)
            self._take_message(*_HEADER.unpack(bytes(header.tolist())), receive_into)

    def _take_message(self, tag: int, size: int, receive_into: Callable[[torch.Tensor], None]) -> None:
        with self._changed:
            wanted = self._take(tag)
        try:
            fits = wanted is not None and wanted.buffer.nbytes == size
            data = wanted.buffer if wanted is not None and fits else torch.empty(size, dtype=torch.uint8)
            receive_into(data)
        except BaseException as error:
            if wanted is not None:
                wanted.work.complete(error, self.peer)
            raise
        if wanted is not None:
            wanted.finish(self.peer, size)
            return
        with self._changed:
            # Receives may have been posted while the message arrived: the earliest one takes it.
            late = self._take(tag)
            if late is None:
                self._kept.append((tag, data))
        if late is not None:
            self.bring(data, late)

    def has_left(self) -> bool:
        """Whether the peer has left in good order: then receives from any rank go on with the others."""
        return self.error is not None and _LEFT.search(str(self.error)) is not None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self.error = error
            posted, has_left = list(self._posted), self.has_left()
            for receive in posted:
                for inbox in [self] if has_left else list(receive.inboxes):
                    inbox._posted.remove(receive)
                    receive.inboxes.remove(inbox)
            failed = [receive for receive in posted if not receive.inboxes]
        for receive in failed:
            receive.work.complete(error, self.peer)


class Channels:
    """All channels of one group."""

    def __init__(
        self, store: dist.Store, rank: int, init_s: int, label: str, group_error: Callable[[int], Optional[BaseException]]
    ) -> None:
        """group_error(peer): why no channel with that rank can form any more, if so."""
        self.store, self.rank, self.init_s, self.label = store, rank, init_s, label
        self.group_error = group_error
        self.guard = threading.Lock()
        self._out: dict[int, Outbox] = {}
        self._in: dict[int, Inbox] = {}

    def destroyed(self) -> TuttiError:
        return TuttiError(f"the group was destroyed{self.label}", library.INVALID_USAGE)

    def send(self, tensor: torch.Tensor, peer: int, tag: int, place: int) -> TuttiWork:
        with self.guard:
            if peer not in self._out:
                self._out[peer] = Outbox(self, peer)
        return self._out[peer].send(tensor, tag, place)

    def receive(self, receive: Receive, peers: list[int]) -> None:
        with self.guard:
            for peer in peers:
                if peer not in self._in:
                    self._in[peer] = Inbox(self, peer)
            inboxes = [self._in[peer] for peer in peers]
            for inbox in inboxes:
                kept = inbox.take_kept(receive.tag)
                if kept is not None:
                    break
            else:
                receive.inboxes = [inbox for inbox in inboxes if not inbox.has_left()] or inboxes
                error = next((inbox.error for inbox in receive.inboxes if inbox.error is not None), None)
                if error is None:
                    for inbox in receive.inboxes:
                        inbox.post(receive)
                    return
        if kept is not None:
            inbox.bring(kept, receive)
        else:
            receive.work.complete(error)

    def close(self, limit: timedelta) -> None:
        """Sends what is still queued; receives that still wait get an error."""
        for outbox in self._out.values():
            outbox.close(limit.total_seconds())

    def abort(self) -> None:
        for inbox in self._in.values():
            inbox.close()
        for outbox in self._out.values():
            if outbox.comm is not None:
                outbox.comm.abort()
            outbox.close(10)
