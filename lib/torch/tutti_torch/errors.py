"""Tutti's errors as Python exceptions."""
from __future__ import annotations

import torch.distributed as dist

from . import library


class TuttiError(dist.DistBackendError):
    """The result of a Tutti function: its name, and the sentence that says what happened and what to do.

    `code` is the tuttiResult_t. After a remote error or a time-out the group can only be destroyed."""

    def __init__(self, sentence: str, code: int = library.INVALID_ARGUMENT) -> None:
        super().__init__(sentence)
        self.code = code


def error_of(code: int, comm: int | None = None, note: str = "") -> TuttiError:
    """The exception for a result other than success, with comm's last error, or this thread's if comm is None."""
    return TuttiError(library.sentence(code, comm) + note, code)


def check(code: int, note: str = "") -> None:
    """Raises the error for what a call on this thread has just returned, unless it is success."""
    if code != library.SUCCESS:
        raise error_of(code, None, note)
