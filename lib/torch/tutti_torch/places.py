"""Where the user's program calls an operation, for Tutti's messages: "all_reduce of float32[1024] at train.py:41".

A place is named to the library once; afterwards a call looks up its number, which takes less than a microsecond.
"""
from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch._C._profiler import _RecordFunctionFast

from . import library
from .errors import check

# The most places kept here; the library keeps more.
_MOST = 2048
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Paths of files that are not the user's: torch, what is installed beside it, and Python's own.
_FOREIGN = (
    HERE,
    os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))) + os.sep,
    os.path.dirname(os.path.abspath(threading.__file__)) + os.sep,
    "<",
)
_numbers: dict[Any, int] = {}
_foreign: dict[str, bool] = {}
_set_place: Any = None
# The module in C, which keeps places, too, and sets them faster; calls.py assigns it.
in_c: Any = None
_profiles = torch.autograd._profiler_enabled
# c10d's names of its operators, for torch's profiler.
_IN_C10D = {
    "all_reduce": "allreduce_",
    "broadcast": "broadcast_",
    "reduce": "reduce_",
    "all_gather": "allgather_",
    "all_gather_single": "_allgather_base_",
    "reduce_scatter": "_reduce_scatter_base_",
    "gather": "gather_",
    "scatter": "scatter_",
    "all_to_all": "alltoall_base_",
}


def set_place(number: int) -> None:
    """Names the place from which this thread's next operations are called."""
    global _set_place
    if _set_place is None:
        # PyDLL keeps the interpreter's lock: the call is too short to release it.
        _set_place = ctypes.PyDLL(library.load()._name).tuttiSetPlace
        _set_place.argtypes, _set_place.restype = [ctypes.c_uint64], ctypes.c_int
    _set_place(number)


def is_foreign(name: str) -> bool:
    """Whether the file belongs to torch or Tutti and not to the user."""
    foreign = _foreign.get(name)
    if foreign is None:
        foreign = _foreign[name] = name.startswith(_FOREIGN)
    return foreign


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _file(name: str) -> str:
    try:
        beside = os.path.relpath(name)
    except OSError:  # the current directory was removed
        return os.path.basename(name)
    return beside if len(beside) < 50 and not beside.startswith("..") else os.path.basename(name)


def in_torch_terms(tensor: torch.Tensor) -> str:
    """ "float32[32, 100]" """
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _name(text: str) -> int:
    number = ctypes.c_uint64()
    library.load().tuttiNamePlace(text.encode(errors="replace"), ctypes.byref(number))
    return number.value


def number(what: str, first: torch.Tensor | None, tensors: int, frame: FrameType | None) -> int:
    """The number of this frame's place, where `what` is called with `tensors` tensors, beginning with `first`."""
    code = frame.f_code if frame is not None else None
    # With the first line, because functions of one file have the same offsets.
    where = (code.co_filename, code.co_firstlineno, frame.f_lasti) if code is not None else None
    key = (what, where, tensors, first.dtype, first.shape) if first is not None else (what, where)
    known = _numbers.get(key)
    if known is not None:
        return known
    if len(_numbers) >= _MOST:
        _numbers.clear()
        if in_c is not None:
            in_c.forget_places()
    text = what
    if first is not None:
        text += f" of {in_torch_terms(first)}" + f" and {tensors - 1} more" * (tensors > 1)
    if frame is not None:
        text += f" at {_file(frame.f_code.co_filename)}:{frame.f_lineno}"
    known = _numbers[key] = _name(text)
    return known


def place(what: str, tensors: Sequence[torch.Tensor]) -> int:
    """The number of the place in the user's code that is nearest on the stack."""
    return number(what, tensors[0] if tensors else None, len(tensors), _user_frame(sys._getframe()))


def set_place_at_end(error: BaseException | None) -> None:
    """Tells the peers that the program ends, and with which error, if any."""
    text = "its program has ended"
    if error is not None:
        text += f" with {type(error).__name__}: {error}".splitlines()[0][:50]
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and _user_frame(trace.tb_next.tb_frame) is trace.tb_next.tb_frame:
            trace = trace.tb_next
        if trace is not None:
            text += f" at {_file(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    set_place(_name(text))


def called(what: str, tensors: Sequence[torch.Tensor], issue: Callable[..., None]) -> Callable[..., None]:
    """Names the calling place to the library, for the calls that issue() makes on this thread, and returns issue(). If
    torch's profiler is on, it records issue() as it does the operations of its own backends."""
    if in_c is not None:
        in_c.set_place(what, tensors[0] if tensors else None, len(tensors))
    else:
        set_place(place(what, tensors))
    if not _profiles():
        return issue

    def profiled(comm: int, stream: Any) -> None:
        with _RecordFunctionFast(f"c10d::{_IN_C10D.get(what, what)}", list(tensors), {}):
            if stream is not None and (not tensors or tensors[0].is_cpu):
                _until_done(what, comm, stream, issue)
                return
            with _RecordFunctionFast(f"tutti:{what}", list(tensors), {}):
                issue(comm, stream)

    return profiled


def _until_done(what: str, comm: int, stream: int, issue: Callable[..., None]) -> None:
    """issue() on a stream of Tutti's; the profiler's record ends with the operation."""
    done: torch.futures.Future[None] = torch.futures.Future()
    with torch.autograd.profiler.record_function(f"tutti:{what}") as record:
        record._call_end_callbacks_on_future(done)
        try:
            issue(comm, stream)
            check(library.when_done(stream, lambda _: done.set_result(None)))
        except BaseException:
            done.set_result(None)
            raise
