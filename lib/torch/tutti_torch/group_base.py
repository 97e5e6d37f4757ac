"""What all operations of a process group share."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from . import calls, library
from .communicator import Communicator
from .errors import TuttiError
from .lanes import Lanes, Stream

__all__ = ["GroupBase", "Stream", "one"]


def one(tensors: Sequence[Any], what: str) -> Any:
    """The only element: lists of several are for processes that drive several devices."""
    if len(tensors) != 1:
        raise TuttiError(f"{what}: {len(tensors)} tensors, where a process of Tutti has one", library.INVALID_ARGUMENT)
    return tensors[0]


class GroupBase(dist.ProcessGroup):
    """Holds the communicators. Subclasses add operations."""

    def __init__(self, rank: int, size: int, communicator: Communicator, lanes: Lanes) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._communicator, self._lanes = communicator, lanes
        self._api = library.load()
        calls.load()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """The calls within are one group of Tutti's: they run side by side where they can."""
        self._api.tuttiGroupStart()
        try:
            yield
        except BaseException:
            self._api.tuttiGroupEnd()
            raise
        self._communicator.check(self._api.tuttiGroupEnd())
