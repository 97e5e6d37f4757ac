"""What all operations of a process group share: whether they run on the caller's thread or on the stream."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

import torch
import torch.distributed as dist

from . import library
from .communicator import Communicator
from .errors import TuttiError, error_of
from .work import TuttiWork, pending

Stream = Optional[int]


def one(tensors: Sequence[Any], what: str) -> Any:
    """The only element: lists of several are for processes that drive several devices."""
    if len(tensors) != 1:
        raise TuttiError(f"{what}: {len(tensors)} tensors, where a process of Tutti has one", library.INVALID_ARGUMENT)
    return tensors[0]


class GroupBase(dist.ProcessGroup):
    """Holds the communicator. Subclasses add operations."""

    def __init__(self, rank: int, size: int, communicator: Communicator) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._communicator = communicator
        self._api = library.load()

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

    def _launch(
        self,
        is_async: bool,
        issue: Callable[[Stream], None],
        results: list[torch.Tensor] | None,
        finish: Callable[[], None] | None = None,
        keep: object = None,
    ) -> TuttiWork:
        """issue(stream) calls Tutti's functions; finish() runs when they are done, on the stream's thread if is_async.
        `keep` is what has to stay alive until then."""
        work = TuttiWork(results)
        if not is_async:
            issue(None)
            if finish is not None:
                finish()
            return work
        communicator = self._communicator
        stream = communicator.stream
        issue(stream)
        work.begin()

        def done(code: int) -> None:
            error: BaseException | None = None
            nonlocal keep
            try:
                if code != library.SUCCESS:
                    error = error_of(code, None, communicator.label)
                elif finish is not None:
                    finish()
            except BaseException as raised:  # noqa: BLE001  # there is no one above to take it
                error = raised
            keep = None
            work.complete(error)

        pending.add(stream, done)
        return work
