"""Makes NumPy arrays over the memory of the objects that users pass. Nothing is copied silently: a result goes into the array
that the caller named, or the call fails."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import library
from .errors import TuttiError
from .library import TYPES  # by name, because NumPy knows the types of ml_dtypes only once that package is imported


def _from_dlpack(thing: Any) -> np.ndarray:
    """NumPy before 2.3 takes all DLPack memory for read-only. So tries the object's __array__, and uses it unless it copied."""
    array = np.from_dlpack(thing)
    if array.flags.writeable or not hasattr(thing, "__array__"):
        return array
    own = np.asarray(thing)
    is_same = (own.ctypes.data, own.strides, own.dtype) == (array.ctypes.data, array.strides, array.dtype)
    return own if is_same else array


def _shared(thing: Any) -> np.ndarray:
    """The memory of `thing`."""
    if isinstance(thing, np.ndarray):
        return thing
    try:
        if hasattr(thing, "__dlpack__"):
            return _from_dlpack(thing)
        has_interface = hasattr(thing, "__array_interface__") and not isinstance(thing, np.generic)  # a scalar's is of a copy
        return np.asarray(thing if has_interface else memoryview(thing))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TuttiError(
            f"a {type(thing).__name__} is not an array in host memory ({error}): pass one that has __dlpack__, "
            "__array_interface__ or a buffer, for example numpy.asarray(it)"
        ) from None


def view(thing: Any, name: str, is_written: bool = False) -> np.ndarray:
    """`thing` as an array that Tutti can work on; `name` is what the caller calls it."""
    array = _shared(thing)
    what = f"{name}, of shape {array.shape} and type {array.dtype},"
    if not array.flags.c_contiguous:
        raise TuttiError(f"{what} is not contiguous (strides {array.strides}): pass numpy.ascontiguousarray({name})")
    if not array.dtype.isnative:
        raise TuttiError(f"{what} has the other byte order: pass {name}.astype({name}.dtype.newbyteorder('='))")
    if not array.flags.aligned:
        raise TuttiError(f"{what} is not aligned to its type: pass {name}.copy()")
    if is_written and not array.flags.writeable:
        raise TuttiError(f"{what} is read-only, and the result would go there: pass out=numpy.empty_like({name})")
    return array


def reducible(array: Any, name: str) -> int:
    """Tutti's type for the elements; an error if Tutti cannot reduce that type."""
    code = TYPES.get(array.dtype.name)
    if code is None:
        raise TuttiError(
            f"{name} has elements of type {array.dtype}, which Tutti does not reduce: convert it with astype to one of "
            + ", ".join(TYPES)
        )
    return code


def movable(array: np.ndarray, name: str) -> tuple[int, int]:
    """How many elements are sent, and as which type: as bytes if Tutti has no such type."""
    if array.dtype.hasobject:
        raise TuttiError(f"{name} holds Python objects, which other processes cannot use: send pickle.dumps of them as uint8")
    code = TYPES.get(array.dtype.name)
    return (array.size, code) if code is not None else (array.nbytes, library.UINT8)


def fitting(out: Any, like: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array for a result of the given shape and `like`'s type: `out`, or a new array."""
    if out is None:
        return np.empty(shape, like.dtype)
    array = view(out, "out", is_written=True)
    if array.dtype != like.dtype or array.size != int(np.prod(shape)):
        raise TuttiError(f"out has {array.size} elements of type {array.dtype}; {shape} of {like.dtype} are needed")
    return array
