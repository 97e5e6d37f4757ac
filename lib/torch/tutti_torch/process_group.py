"""The c10d process group: one communicator, the operations, and the group's life."""
from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import library
from .communicator import EXIT_LIMIT_S, Communicator, NoCommunicator, limit_s
from .devices import Sorting, devices_of_creation, is_recorded, make_others, register_backend
from .errors import TuttiError
from .exchanges import Exchanges
from .group_base import DEVICES, one
from .lanes import Broken, HostLane, Lanes
from .monitored_barrier import monitored_barrier
from .places import place, set_place
from .point_to_point import Channels, Receive
from .reductions import Reductions
from .rendezvous import Meeting, forget_id
from .tensors import check_dense, plain, stage
from .work import TuttiWork

NAME = "tutti"


class TuttiProcessGroup(Reductions, Exchanges):
    """Made by init_process_group("tutti") and new_group. `devices` are the types of device whose backend it is;
    `others` is a group with the backends of other devices, if any. With `waits` it has no peers before
    reconfigure()."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, timeout: timedelta, global_ranks: Sequence[int] = (),
        devices: Sequence[str] = DEVICES, others: dist.ProcessGroup | None = None, waits: bool = False
    ) -> None:
        super().__init__(rank, size, devices, others)
        self._first_store, self._timeout, self._handle = store, timeout, uuid.uuid4().hex
        self._name = self._description = ""
        self._join(store, rank, size, timeout, global_ranks, waits)
        register_backend(self)

    def _join(
        self, store: dist.Store, rank: int, size: int, timeout: timedelta, global_ranks: Sequence[int], waits: bool = False
    ) -> None:
        """Collective, unless it `waits`."""
        label = _label(global_ranks)
        init_s = limit_s(timeout, "TUTTI_INIT_TIMEOUT")
        op_s = limit_s(timeout, "TUTTI_OP_TIMEOUT")
        deterministic = torch.are_deterministic_algorithms_enabled()
        # The limit for each message, since channels have none.
        self._message_limit = _named_limit(op_s, "TUTTI_OP_TIMEOUT", timeout)

        def join(unique: bytes, device: int | None, broken: Broken) -> Communicator:
            options = library.config(init_s, op_s, deterministic, device)
            return Communicator(unique, rank, size, options, label, broken)

        communicator: Communicator
        own_store = store
        if waits:
            communicator = NoCommunicator("the group has no peers yet (enable_reconfigure=True): call _reconfigure")
        else:
            meeting = Meeting(store, rank, functools.partial(_loss_in, list(global_ranks)), label)
            unique = meeting.exchange_id(_named_limit(init_s, "TUTTI_INIT_TIMEOUT", timeout))
            try:
                communicator = join(unique, None, meeting.broken)
            except TuttiError as error:
                raise meeting.explain(error) from None
            if rank == 0:
                forget_id(store)
            # The prefix hides what an earlier group of the same name has left in the store.
            own_store = dist.PrefixStore(hashlib.sha256(unique).hexdigest()[:16], store)
        self._enter(rank, size, communicator, Lanes(HostLane(communicator), rank, join))
        self._store, self._own_store, self._label = store, own_store, label
        self._global_ranks = list(global_ranks) or list(range(size))

        def group_error(peer: int) -> TuttiError | None:
            """Ranks that live exchange messages in a group that has lost others, too."""
            error = communicator.broken()
            if error is None or peer not in communicator.lost_ranks(size):
                return None
            if re.search(rf"\brank {peer} \(", str(error)):
                return error
            return TuttiError(f"rank {peer} was lost after the group had failed: {error}", error.code)

        self._channels = Channels(own_store, rank, init_s, label, group_error)
        self._barriers = itertools.count()

    # ---- what c10d asks of a group ----

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def getRank(self) -> int:  # noqa: N802
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        return self._size

    name, rank, size = getBackendName, getRank, getSize

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name
        if hasattr(self, "_backend"):
            dist.ProcessGroup._set_group_name(self, name)
        if self._others is not None:
            self._others._set_group_name(name)

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description
        if hasattr(self, "_backend"):
            dist.ProcessGroup._set_group_desc(self, description)

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name, group_desc = property(getGroupName), property(getGroupDesc)  # type: ignore[assignment]

    def get_group_store(self) -> dist.Store:
        return self._store

    # ---- point to point ----

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int = 0) -> TuttiWork:  # noqa: N803
        tensor = plain(one(tensors, "send"))
        # Messages between two ranks go through host memory; the copy waits for the current stream.
        where = place("send", [tensor])
        work = self._channels.send(tensor if tensor.is_cpu else tensor.cpu(), self._peer(dstRank), tag, where)
        work.limit, work.what = self._message_limit, f"send to rank {dstRank}"
        return self._noted(work)

    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int = 0) -> TuttiWork:  # noqa: N803
        return self._receive(tensors, [self._peer(srcRank)], tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> TuttiWork:
        return self._receive(tensors, [peer for peer in range(self._size) if peer != self._rank], tag)

    def _receive(self, tensors: list[torch.Tensor], peers: list[int], tag: int) -> TuttiWork:
        tensor = one(tensors, "recv")
        check_dense(tensor)
        work = TuttiWork([tensor]).begin()
        work.limit = self._message_limit
        work.what = f"recv from rank {peers[0]}" if len(peers) == 1 else "recv from any rank"
        if tensor.is_cpu:
            buffer = stage([tensor])[0][0]
        else:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
            # The message may arrive at any time, and another thread copies it.
            torch.cuda.current_stream(tensor.device).synchronize()
        self._channels.receive(Receive(tensor, buffer, tag, work, place("recv", [tensor])), peers)
        return self._noted(work)

    def _noted(self, work: TuttiWork) -> TuttiWork:
        if self._messages is not None:
            self._messages.append(work)
        return work

    def _peer(self, peer: int) -> int:
        if not 0 <= peer < self._size or peer == self._rank:
            raise TuttiError(f"rank {self._rank} of {self._size} cannot send to or receive from rank {peer}")
        return peer

    # ---- the group's life ----

    def split_group(
        self, ranks: list[int], timeout: timedelta | None = None, opts: Any = None, group_name: str | None = None,
        group_desc: str | None = None, device_types: Any = None
    ) -> TuttiProcessGroup | None:
        """For torch.distributed.split_group: a group of these ranks of this group, or None on ranks outside it."""
        if self._rank not in ranks:
            return None
        if self._others is not None:
            raise TuttiError("split_group of a group with several backends: use new_group", library.INVALID_USAGE)
        name = group_name or f"{self._name}/split of {','.join(map(str, ranks))}"
        made = TuttiProcessGroup(
            dist.PrefixStore(f"{name}/", self._store),
            *(ranks.index(self._rank), len(ranks)),
            timeout or self._timeout,
            [self._global_ranks[rank] for rank in ranks],
            self._devices,
        )
        _watch(made)
        made.setGroupName(name)
        made.setGroupDesc(group_desc or "")
        return made

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that died or did not come within `timeout`; with late ranks the group
        stays usable."""
        limit = self._timeout if timeout is None else timeout
        self._communicator.handle  # noqa: B018  # raises when the group was destroyed
        lost = functools.partial(self._communicator.lost_ranks, self._size)
        monitored_barrier(self._own_store, self._rank, self._size, next(self._barriers), limit, wait_all_ranks, lost)

    def lost_ranks(self) -> list[int]:
        """The ranks of this group whose processes died, as far as is known here (tuttiCommLostRanks). Does not block."""
        return self._communicator.lost_ranks(self._size)

    def shutdown(self) -> None:
        """Collective. Waits at most a minute for the other ranks, then goes on with a warning."""
        set_place(place("destroy_process_group", []))
        self._channels.close(timedelta(seconds=EXIT_LIMIT_S))
        self._lanes.close()
        self._channels.abort()
        if self._others is not None:
            self._others.shutdown()

    def abort(self) -> None:
        set_place(place("abort", []))
        self._lanes.abort()
        self._channels.abort()
        if self._others is not None:
            self._others.abort()

    # ---- torch's calls for groups that lose and gain ranks ----

    supports_reconfigure = True

    def get_reconfigure_handle(self) -> str:
        return self._handle

    def reconfigure(self, opts: Any) -> TuttiWork:
        """Collective over the groups with these handles; a rank is its handle's index in the list (a set is sorted
        alphabetically). They must have been created with one store. Operations under way in the old group end with an
        error; it may have lost ranks or been aborted, and ranks that are left out need not call."""
        handles = opts.handles if isinstance(opts.handles, list) else sorted(opts.handles)
        if self._handle not in handles:
            raise TuttiError(
                f"reconfigure: this rank's handle {self._handle} is not among the {len(handles)} that were given: "
                "get_reconfigure_handle() returns it"
            )
        set_place(place("reconfigure", []))
        self._lanes.abort()
        self._channels.abort()
        store = dist.PrefixStore(f"tutti/{opts.uuid}", self._first_store)
        self._join(store, handles.index(self._handle), len(handles), opts.timeout or self._timeout, ())
        return TuttiWork([])

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: Tutti numbers its operations itself."""


class SortingProcessGroup(Sorting, TuttiProcessGroup):
    """A group of several backends, or one whose calls are compared (TORCH_DISTRIBUTED_DEBUG=DETAIL) or recorded."""


def _named_limit(seconds: int, variable: str, timeout: timedelta) -> timedelta:
    """The limit that limit_s() has left to the environment variable, else c10d's time-out."""
    named = os.environ.get(variable, "") if seconds == library.UNDEFINED_INT else ""
    return timedelta(seconds=int(named)) if named.isdigit() else timeout


def _label(global_ranks: Sequence[int]) -> str:
    """Ranks in messages are the group's; this gives their numbers in the job."""
    if not global_ranks or list(global_ranks) == list(range(len(global_ranks))):
        return ""
    shown = ", ".join(f"{i} is {r}" for i, r in enumerate(global_ranks[:16])) + ", ..." * (len(global_ranks) > 16)
    return f" (ranks of this group in the job: {shown})"


def _loss_in(global_ranks: list[int]) -> str | None:
    """Which of a new group's ranks the job's group has lost, in words. It died if the job's group failed because of it;
    others may have left because that had failed."""
    world: Any = dist.group.WORLD
    try:
        lost = [rank for rank in world.lost_ranks() if rank in global_ranks]
        failure = world._communicator.async_error() if lost else None
    except (AttributeError, TuttiError):  # no such group yet or any more, or it is not Tutti's
        return None
    if not lost:
        return None
    # A rank is also named before what it has told or called.
    names = r"\brank {} \([^)]*\) (?!reports: |called )"
    died = [rank for rank in lost if failure is None or re.search(names.format(rank), str(failure))]
    rank = (died or lost)[0]
    return f"rank {global_ranks.index(rank)} " + ("died" if died else f"left the job, which had failed ({failure}),")


def _watch(group: TuttiProcessGroup) -> None:
    """Has a new group's calls compared, recorded and sorted where that is wanted."""
    group._compares, group._records = dist.get_debug_level() == dist.DebugLevel.DETAIL, is_recorded(group)
    group._find_short_way()
    if group._compares or group._records or group._others is not None:
        group.__class__ = SortingProcessGroup


def create(options: Any, _: Any = None) -> TuttiProcessGroup:
    """c10d calls this to create a group."""
    devices, there = devices_of_creation(NAME)
    others = make_others(there, NAME)
    place = (options.store, options.group_rank, options.group_size, options.timeout)
    waits = getattr(options, "enable_reconfigure", False)
    group = TuttiProcessGroup(*place, list(options.global_ranks_in_group), devices, others, waits)
    _watch(group)
    return group


@functools.cache
def serve_monitored_barrier() -> None:
    """torch.distributed.monitored_barrier refuses by name all backends except gloo. From now on it serves Tutti's, also
    for a program that imports it by name."""
    theirs = dist.monitored_barrier

    @functools.wraps(theirs)
    def serve(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        which = dist.group.WORLD if group is None else group
        if isinstance(which, TuttiProcessGroup):
            if isinstance(timeout, (int, float)):
                timeout = timedelta(seconds=timeout)
            return which.monitored_barrier(timeout, wait_all_ranks)
        return theirs(group, timeout, wait_all_ranks)

    dist.monitored_barrier = serve
    dist.distributed_c10d.monitored_barrier = serve
