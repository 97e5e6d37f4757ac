"""The c10d process group: one communicator, the operations, and the group's life."""
from __future__ import annotations

import functools
import itertools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import library
from .communicator import EXIT_LIMIT_S, Communicator, limit_s
from .errors import TuttiError
from .exchanges import Exchanges
from .group_base import one
from .lanes import HostLane, Lanes
from .monitored_barrier import monitored_barrier
from .places import place, stand_at
from .point_to_point import Channels, Receive
from .reductions import Reductions
from .rendezvous import exchange_id, forget_id
from .tensors import check_dense, plain, stage
from .work import TuttiWork

NAME = "tutti"


class TuttiProcessGroup(Reductions, Exchanges):
    """Made by init_process_group("tutti") and new_group."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, global_ranks: list[int]) -> None:
        self._store, self._timeout, self._label = store, timeout, _label(global_ranks)
        unique = exchange_id(store, rank, size, timeout)
        init_s = limit_s(timeout, "TUTTI_INIT_TIMEOUT")
        op_s = limit_s(timeout, "TUTTI_OP_TIMEOUT")
        deterministic = torch.are_deterministic_algorithms_enabled()

        def join(unique: bytes, device: int | None) -> Communicator:
            options = library.config(init_s, op_s, deterministic, device)
            return Communicator(unique, rank, size, options, self._label)

        communicator = join(unique, None)
        forget_id(store, rank)

        super().__init__(rank, size, communicator, Lanes(HostLane(communicator), rank, join))
        self._channels = Channels(store, rank, size, init_s, self._label, communicator.async_error)
        self._barriers = itertools.count()
        self._name = self._description = ""

    # ---- what c10d asks a group for ----

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def name(self) -> str:
        return NAME

    def getRank(self) -> int:  # noqa: N802
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        return self._size

    rank, size = getRank, getSize

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def group_name(self) -> str:  # type: ignore[override]
        return self._name

    @property
    def group_desc(self) -> str:  # type: ignore[override]
        return self._description

    # ---- point to point ----

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> TuttiWork:
        tensor = plain(one(tensors, "send"))
        # Messages between two ranks go through host memory; the copy waits for the current stream.
        where = place("send", [tensor])
        return self._channels.send(tensor if tensor.is_cpu else tensor.cpu(), self._peer(peer), tag, where)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int = 0) -> TuttiWork:
        return self._receive(tensors, [self._peer(peer)], tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> TuttiWork:
        return self._receive(tensors, [peer for peer in range(self._size) if peer != self._rank], tag)

    def _receive(self, tensors: list[torch.Tensor], peers: list[int], tag: int) -> TuttiWork:
        tensor = one(tensors, "recv")
        check_dense(tensor)
        work = TuttiWork([tensor]).begin()
        if tensor.is_cpu:
            buffer = stage([tensor])[0][0]
        else:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
            # The message may come at any time, and is copied by another thread.
            torch.cuda.current_stream(tensor.device).synchronize()
        self._channels.receive(Receive(tensor, buffer, tag, work, place("recv", [tensor])), peers)
        return work

    def _peer(self, peer: int) -> int:
        if not 0 <= peer < self._size or peer == self._rank:
            raise TuttiError(
                f"rank {self._rank} of {self._size} cannot send to or receive from rank {peer}", library.INVALID_ARGUMENT
            )
        return peer

    # ---- the group's life ----

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that did not come within `timeout`; the group stays usable."""
        limit = self._timeout if timeout is None else timeout
        self._communicator.handle  # noqa: B018  # raises when the group was destroyed
        monitored_barrier(self._store, self._rank, self._size, next(self._barriers), limit, wait_all_ranks)

    def lost_ranks(self) -> list[int]:
        """The ranks of this group whose processes died, as far as is known here (tuttiCommLostRanks). Does not block."""
        return self._communicator.lost_ranks(self._size)

    def shutdown(self) -> None:
        """Collective, but not for ever: who does not come within a minute is left behind with a warning."""
        stand_at(place("destroy_process_group", []))
        self._channels.close(timedelta(seconds=EXIT_LIMIT_S))
        self._lanes.close()
        self._channels.abort()

    def abort(self) -> None:
        stand_at(place("abort", []))
        self._lanes.abort()
        self._channels.abort()

    def _set_sequence_number_for_group(self) -> None:
        """Tutti numbers its operations itself."""


def _label(global_ranks: list[int]) -> str:
    """Ranks in messages are the group's; this says whose they are in the job."""
    if not global_ranks or global_ranks == list(range(len(global_ranks))):
        return ""
    shown = ", ".join(f"{i} is {r}" for i, r in enumerate(global_ranks[:16])) + ", ..." * (len(global_ranks) > 16)
    return f" (ranks of this group in the job: {shown})"


def create(options: Any, _: Any = None) -> TuttiProcessGroup:
    """What c10d calls for a new group."""
    _serve_monitored_barrier()
    return TuttiProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, list(options.global_ranks_in_group)
    )


@functools.cache
def _serve_monitored_barrier() -> None:
    """torch.distributed.monitored_barrier refuses all backends but gloo by name. From the first group on it serves
    Tutti's, too."""
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
