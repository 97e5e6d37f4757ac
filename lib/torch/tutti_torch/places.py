"""Where in the user's program an operation is called, for Tutti's sentences: "all_reduce of float32[1024] at train.py:41".

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

# Fewer than the library keeps.
_MOST = 2048
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# What is no user's: torch, what is installed beside it, and Python's own.
_FOREIGN = (
    _HERE,
    os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))) + os.sep,
    os.path.dirname(os.path.abspath(threading.__file__)) + os.sep,
    "<",
)
_numbers: dict[Any, int] = {}
_is_foreign: dict[str, bool] = {}
_set_place: Any = None
_profiles = torch.autograd._profiler_enabled


def stand_at(number: int) -> None:
    """This thread's operations come from there, from now on."""
    global _set_place
    if _set_place is None:
        # Too short to let another thread have the interpreter for.
        _set_place = ctypes.PyDLL(library.load()._name).tuttiSetPlace
        _set_place.argtypes, _set_place.restype = [ctypes.c_uint64], ctypes.c_int
    _set_place(number)


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        name = frame.f_code.co_filename
        foreign = _is_foreign.get(name)
        if foreign is None:
            foreign = _is_foreign[name] = name.startswith(_FOREIGN)
        if not foreign:
            return frame
        frame = frame.f_back
    return None


def _file(name: str) -> str:
    beside = os.path.relpath(name)
    return beside if len(beside) < 50 and not beside.startswith("..") else os.path.basename(name)


def in_torch_terms(tensor: torch.Tensor) -> str:
    """ "float32[32, 100]" """
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _name(text: str) -> int:
    number = ctypes.c_uint64()
    library.load().tuttiNamePlace(text.encode(errors="replace"), ctypes.byref(number))
    return number.value


def _number(what: str, tensors: Sequence[torch.Tensor], frame: FrameType | None) -> int:
    text = what
    if tensors:
        text += f" of {in_torch_terms(tensors[0])}" + f" and {len(tensors) - 1} more" * (len(tensors) > 1)
    if frame is not None:
        text += f" at {_file(frame.f_code.co_filename)}:{frame.f_lineno}"
    return _name(text)


def place(what: str, tensors: Sequence[torch.Tensor], depth: int = 2) -> int:
    """The number of the place that called the caller's caller."""
    frame = _user_frame(sys._getframe(depth))
    where = (frame.f_code.co_filename, frame.f_lasti) if frame is not None else None
    key = (what, where, len(tensors), tensors[0].dtype, tensors[0].shape) if tensors else (what, where)
    number = _numbers.get(key)
    if number is None:
        if len(_numbers) >= _MOST:
            _numbers.clear()
        number = _numbers[key] = _number(what, tensors, frame)
    return number


def stand_at_end(error: BaseException | None) -> None:
    """The program ends, with this error if it has one."""
    text = "its program has ended"
    if error is not None:
        text += f" with {type(error).__name__}: {error}".splitlines()[0][:50]
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and _user_frame(trace.tb_next.tb_frame) is trace.tb_next.tb_frame:
            trace = trace.tb_next
        if trace is not None:
            text += f" at {_file(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
    stand_at(_name(text))


def called(what: str, tensors: Sequence[torch.Tensor], issue: Callable[..., None]) -> Callable[..., None]:
    """issue(), which makes the library's calls on this thread, in the name of the place that called; seen by torch's
    profiler if that is on."""
    stand_at(place(what, tensors, 3))
    if not _profiles():
        return issue

    def profiled(stream: Any) -> None:
        with _RecordFunctionFast(f"tutti::{what}", list(tensors), {}):
            issue(stream)

    return profiled
