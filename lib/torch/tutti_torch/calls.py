"""Loads the C module that calls libtutti without ctypes (../calls.cpp): libtutti-torch.so, installed beside
libtutti.so.0. Without it every call goes through ctypes, which takes longer."""
from __future__ import annotations

import functools
import importlib.util
import logging
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from typing import Any

import torch
from . import library, places
from .tensors import OPERATORS, OPS, TYPES
from .work import TuttiWork

# Equals the module's kVersion. Both are incremented when the interface between the two changes.
VERSION = 3

# The functions that the module calls, in its order.
_FUNCTIONS = (
    *("tuttiAllReduce", "tuttiBcast", "tuttiReduce", "tuttiAllGather", "tuttiReduceScatter", "tuttiBarrier"),
    "tuttiSetPlace",
)

_log = logging.getLogger("tutti_torch")


def _import() -> Any:
    path = str(library.folder() / "libtutti-torch.so")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise ImportError("it needs CPython with a global interpreter lock")
    spec = importlib.util.spec_from_loader("libtutti_torch", ExtensionFileLoader("libtutti_torch", path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.VERSION != VERSION:
        raise ImportError(f"{path} does not match this package's version")
    return module


class _Absent:
    """Stands in for the C module where that is missing."""

    @staticmethod
    def all_reduce_(*_: object) -> None:
        """Handles no call: each one goes through c10d."""

    allreduce = all_gather = barrier = broadcast = reduce = reduce_scatter = all_reduce_


# The C module or its stand-in. Their functions return None if they did nothing.
short: Any = _Absent


@functools.cache
def load() -> Any:
    """Makes `short` the C module, if it can be loaded."""
    global short
    try:
        module = _import()
    except ImportError as error:
        _log.info("calling libtutti through ctypes, which is slower: libtutti-torch.so cannot be used (%s)", error)
        return short
    module.bind(
        list(map(library.address, _FUNCTIONS)),
        torch.Tensor,
        torch.nn.Parameter,
        TYPES,
        torch.autograd._profiler_enabled,
        places.is_foreign,
        places.number,
        lambda group, code: group._communicator.check(code),
        {name: OPERATORS[int(op)] for name, op in OPS.items() if int(op) in OPERATORS},
        OPERATORS,
        # Without results: a caller with asyncOp = False (such as dist.all_reduce) has them in its tensors.
        TuttiWork([]),
    )
    places.in_c = module
    short = module
    return module
