"""Tutti's errors as Python exceptions."""
from __future__ import annotations

from . import library


class TuttiError(RuntimeError):
    """An error of a Tutti function: the name of its code, and the sentence that says what happened and what to do.

    `code` is the tuttiResult_t. After a remote error or a time-out the communicator can only be closed."""

    def __init__(self, sentence: str, code: int = library.INVALID_ARGUMENT) -> None:
        super().__init__(sentence)
        self.code = code


def check(code: int, comm: int | None = None) -> None:
    """Raises TuttiError if `code` is an error. comm: the communicator whose last error to show; None: this thread's."""
    if code != library.SUCCESS:
        raise TuttiError(library.sentence(code, comm), code)
