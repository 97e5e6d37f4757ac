"""All-reduce inside JAX programs on CPUs: a custom call (jax.ffi) that passes XLA's own buffers to libtutti. Nothing is
compiled, and nothing copied: the structs of XLA's C interface that it needs are declared below.

    from tutti_array.jax import all_reduce
    step = jax.jit(lambda gradients: all_reduce(comm, gradients, "avg"))

Every process is a JAX program with one device; jax.distributed is not needed.
"""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import jax
import numpy as np

from .buffers import reducible
from .communicator import Communicator, operator


def _struct(name: str, *fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """A struct of XLA's C interface (xla/ffi/api/c_api.h), with the header that all of its structs share."""
    return type(name, (ctypes.Structure,), {"_fields_": [("size", c_size_t), ("extension", c_void_p), *fields]})


_Buffer = _struct("Buffer", ("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dims", POINTER(c_int64)))
_Buffers = _struct("Buffers", ("count", c_int64), ("types", c_void_p), ("buffers", POINTER(POINTER(_Buffer))))
_Version = _struct("Version", ("major", c_int), ("minor", c_int))
_ErrorArguments = _struct("ErrorArguments", ("message", c_char_p), ("code", c_int))
_CREATE_ERROR = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))
_Api = _struct("Api", ("version", _Version), ("internal", c_void_p), ("create_error", _CREATE_ERROR))
_Call = _struct(
    "Call",
    ("api", POINTER(_Api)),
    ("context", c_void_p),
    ("stage", c_int),
    ("arguments", _Buffers),
    ("results", _Buffers),
)


class _Metadata(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("version", _Version)]


class _Extension(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", POINTER(_Metadata))]


_METADATA, _INTERNAL_ERROR = 1, 13
# The oldest version (major, minor) of the interface that has everything used here.
_OLDEST = 0, 1
_HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(_Call))
# By name. Never freed, because XLA keeps registered handlers for ever.
_handlers: dict[str, Any] = {}


def _handler(comm: Communicator, codes: tuple[int, ...], op: int) -> Any:
    def reduce_all(call: _Call) -> None:
        for code, source, result in zip(codes, call.arguments.buffers[: len(codes)], call.results.buffers[: len(codes)]):
            buffer = source.contents
            count = int(np.prod(buffer.dims[: buffer.rank], dtype=np.int64))
            comm.call("tuttiAllReduce", buffer.data, result.contents.data, count, code, op)

    def handle(frame: Any) -> int | None:
        call = frame.contents
        if call.extension:
            extension = ctypes.cast(call.extension, POINTER(_Extension)).contents
            if extension.type == _METADATA:  # XLA asks for which version this handler was built
                extension.metadata.contents.version.major, extension.metadata.contents.version.minor = _OLDEST
                return None
        try:
            reduce_all(call)
        except BaseException as error:  # no exception may reach the C++ caller
            arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, str(error).encode(), _INTERNAL_ERROR)
            return call.api.contents.create_error(arguments)
        return None

    return _HANDLER(handle)


def all_reduce(comm: Communicator, arrays: Any, op: str = "sum") -> Any:
    """The ranks' arrays combined, on every rank: one array, or all leaves of a tree, one after the other.

    Works under jit, too. XLA may run independent calls in any order, but all ranks must use the same order: so pass arrays that
    are reduced together as one tree, and make other calls depend on earlier ones."""
    leaves, tree = jax.tree.flatten(arrays)
    leaves = [jax.numpy.asarray(leaf) for leaf in leaves]
    codes = tuple(reducible(leaf, "an array") for leaf in leaves)
    name = f"tutti_all_reduce_{comm.number}_{op}_{'_'.join(leaf.dtype.name for leaf in leaves)}"
    if name not in _handlers:
        _handlers[name] = _handler(comm, codes, operator(op))
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(ctypes.cast(_handlers[name], c_void_p).value), platform="cpu")
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    return jax.tree.unflatten(tree, jax.ffi.ffi_call(name, shapes, has_side_effect=True)(*leaves))
