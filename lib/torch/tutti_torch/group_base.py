"""What all operations of a process group share."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import calls, library
from .communicator import Communicator
from .errors import TuttiError
from .lanes import Lanes, Stream
from .work import TuttiWork

__all__ = ["DEVICES", "GroupBase", "Stream", "one"]

# Types of device that Tutti can be the backend of.
DEVICES = ("cpu", "cuda")


def one(tensors: Sequence[Any], what: str) -> Any:
    """The only element: lists of several are for processes that drive several devices."""
    if len(tensors) != 1:
        raise TuttiError(f"{what}: {len(tensors)} tensors were given, but Tutti takes one for each process")
    return tensors[0]


class GroupBase(dist.ProcessGroup):
    """Holds the communicators, and answers as its devices' c10d::Backend. Subclasses add operations."""

    # Whether the ranks' calls are compared, and whether torch records them (devices.py).
    _compares = _records = False
    # Messages since _start_coalescing().
    _messages: list[dist.Work] | None = None

    def __init__(self, rank: int, size: int, devices: Sequence[str], others: dist.ProcessGroup | None) -> None:
        super().__init__(rank, size)
        self._devices, self._others = list(devices), others
        self._api = library.load()
        calls.load()

    def _enter(self, rank: int, size: int, communicator: Communicator, lanes: Lanes) -> None:
        """Sets the communicators that its operations use."""
        self._rank, self._size = rank, size
        self._communicator, self._lanes = communicator, lanes
        self._find_short_way()

    def _find_short_way(self) -> None:
        """For the C module, which takes only tensors in host memory and bypasses comparing and recording."""
        watched = self._compares or self._records
        self._short = self._communicator if "cpu" in self._devices and not watched else None

    # ---- what c10d asks of a backend, and of a group about its backends ----

    supports_splitting = True
    supports_coalescing = supports_time_estimate = supports_shrinking = False

    @property
    def _device_types(self) -> list[torch.device]:
        others = self._others._device_types if self._others is not None else []
        return [*map(torch.device, self._devices), *(device for device in others if device.type not in self._devices)]

    def _get_backend(self, device: torch.device) -> Any:
        if device.type in self._devices:
            return self
        if self._others is None:
            raise TuttiError(f"the group has no backend for {device}")
        return self._others._get_backend(device)

    get_backend = _get_backend

    def _start_coalescing(self, device: torch.device) -> None:
        """For torch's _coalescing_manager(device=...). Operations run as they are called."""
        self._messages = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        """The work of an operation that does nothing, on the stream that runs all others in their order."""
        messages, self._messages = self._messages or [], None
        for message in messages:
            message.wait()
        somewhere = torch.empty(0, device=device)
        if not self._lanes.has(somewhere.device):  # only messages, if anything
            return TuttiWork([])
        lane = self._lanes.of(somewhere)
        return lane.launch("coalesced operations", [], True, lane.calls(), [])

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return False

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Does nothing: the first operation on a device creates its communicator."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Ranks outside the new group do nothing."""
