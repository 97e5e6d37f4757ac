"""The C API (tutti/tutti.h) by ctypes: where libtutti.so is, what its functions take, what its constants are.

Needs no torch. Every call releases the interpreter's lock while it runs. Loaded when first asked for.
"""
from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path

UNIQUE_ID_BYTES = 128
CONFIG_MAGIC = 0x74757474
UNDEFINED_INT = -2147483647 - 1
# tuttiResult_t
SUCCESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS, TIMEOUT = 0, 4, 5, 6, 7, 8
# tuttiDataType_t
INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, FLOAT8E4M3, FLOAT8E5M2 = range(12)
_NAMES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
# By their names in NumPy and torch.
TYPES = {name: code for code, name in enumerate(_NAMES)}
# tuttiRedOp_t
SUM, PROD, MAX, MIN, AVG = range(5)
SCALAR_HOST_IMMEDIATE = 1


class UniqueId(ctypes.Structure):
    """tuttiUniqueId"""

    _fields_ = [("internal", ctypes.c_char * UNIQUE_ID_BYTES)]


class Config(ctypes.Structure):
    """tuttiConfig_t"""

    _fields_ = [
        *(("size", c_size_t), ("magic", c_uint), ("version", c_uint)),
        *((name, c_int) for name in ("initTimeoutSeconds", "opTimeoutSeconds")),
        *((name, c_char_p) for name in ("transports", "algo")),
        *((name, c_int) for name in ("deterministic", "blocking", "cudaDevice", "majority", "encrypt")),
    ]


STREAM_CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)
# Callbacks of streams that have not run yet, by number.
_pending: dict[int, Callable[[int], None]] = {}
_numbers = itertools.count(1)
_report = STREAM_CALLBACK(lambda _, code, number: _pending.pop(number)(code))

_SIZES = POINTER(c_size_t)
_HANDLE = POINTER(c_void_p)
_COMM, _STREAM, _BUFFER, _TYPE, _OP = c_void_p, c_void_p, c_void_p, c_int, c_int

# Argument types of the functions called, in tutti.h's order; all except the last two return a tuttiResult_t.
PROTOTYPES: dict[str, list[type]] = {
    "tuttiGetVersion": [POINTER(c_int)],
    "tuttiGetUniqueId": [POINTER(UniqueId)],
    "tuttiCommInitRankConfig": [_HANDLE, c_int, UniqueId, c_int, POINTER(Config)],
    "tuttiCommInitFromEnv": [_HANDLE, POINTER(Config)],
    "tuttiCommCount": [_COMM, POINTER(c_int)],
    "tuttiCommUserRank": [_COMM, POINTER(c_int)],
    "tuttiCommFinalize": [_COMM],
    "tuttiCommDestroy": [_COMM],
    "tuttiCommAbort": [_COMM],
    "tuttiCommGetAsyncError": [_COMM, POINTER(c_int)],
    "tuttiCommLostRanks": [_COMM, POINTER(c_int), POINTER(c_int)],
    "tuttiCommRegister": [_COMM, _BUFFER, c_size_t, _HANDLE],
    "tuttiCommDeregister": [_COMM, c_void_p],
    "tuttiStreamCreate": [_HANDLE],
    "tuttiStreamQuery": [_STREAM],
    "tuttiStreamDestroy": [_STREAM],
    "tuttiStreamAddCallback": [_STREAM, STREAM_CALLBACK, c_void_p],
    "tuttiAllReduce": [_BUFFER, _BUFFER, c_size_t, _TYPE, _OP, _COMM, _STREAM],
    "tuttiAllReduceQuantized": [_BUFFER, _BUFFER, c_size_t, _TYPE, _OP, _TYPE, c_size_t, _BUFFER, _COMM, _STREAM],
    "tuttiBcast": [_BUFFER, c_size_t, _TYPE, c_int, _COMM, _STREAM],
    "tuttiReduce": [_BUFFER, _BUFFER, c_size_t, _TYPE, _OP, c_int, _COMM, _STREAM],
    "tuttiAllGather": [_BUFFER, _BUFFER, c_size_t, _TYPE, _COMM, _STREAM],
    "tuttiAllGatherv": [_BUFFER, _BUFFER, _SIZES, _SIZES, _TYPE, _COMM, _STREAM],
    "tuttiReduceScatter": [_BUFFER, _BUFFER, c_size_t, _TYPE, _OP, _COMM, _STREAM],
    "tuttiReduceScatterv": [_BUFFER, _BUFFER, _SIZES, _TYPE, _OP, _COMM, _STREAM],
    "tuttiGather": [_BUFFER, _BUFFER, c_size_t, _TYPE, c_int, _COMM, _STREAM],
    "tuttiScatter": [_BUFFER, _BUFFER, c_size_t, _TYPE, c_int, _COMM, _STREAM],
    "tuttiAlltoAll": [_BUFFER, _BUFFER, c_size_t, _TYPE, _COMM, _STREAM],
    "tuttiAlltoAllv": [_BUFFER, _SIZES, _SIZES, _BUFFER, _SIZES, _SIZES, _TYPE, _COMM, _STREAM],
    "tuttiBarrier": [_COMM, _STREAM],
    "tuttiSend": [_BUFFER, c_size_t, _TYPE, c_int, _COMM, _STREAM],
    "tuttiRecv": [_BUFFER, c_size_t, _TYPE, c_int, _COMM, _STREAM],
    "tuttiRedOpCreatePreMulSum": [POINTER(c_int), c_void_p, _TYPE, c_int, _COMM],
    "tuttiRedOpDestroy": [_OP, _COMM],
    "tuttiNamePlace": [c_char_p, POINTER(c_uint64)],
    "tuttiGetLastError": [_COMM],
    "tuttiGetErrorString": [c_int],
}


def candidates() -> list[str]:
    """Where to look for libtutti: TUTTI_LIBRARY alone, or in the package, in the tree's build/, in the folders that the
    package is installed beside, and where the system's loader looks."""
    named = os.environ.get("TUTTI_LIBRARY")
    if named:
        return [str(Path(named) / "libtutti.so.0") if Path(named).is_dir() else named]
    here = Path(__file__).resolve()
    beside = [path.parent for path in here.parent.glob("lib/**/libtutti.so.0")]
    beside += [here.parents[3] / "build"] if here.parents[1].name == "torch" else []
    if len(here.parents) > 3:
        beside += sorted(here.parents[3].glob("*-linux-gnu")) + [here.parents[3]]
    found = [str(folder / "libtutti.so.0") for folder in beside if (folder / "libtutti.so.0").exists()]
    return [*found, "libtutti.so.0"]


@functools.cache
def load() -> ctypes.CDLL:
    """libtutti with its prototypes; an ImportError says where it was looked for."""
    complaints, broken = [], ""
    for name in candidates():
        try:
            library = ctypes.CDLL(name)
            break
        except OSError as error:
            complaints.append(str(error))
            # Any other message is about something that libtutti needs.
            if str(error) != f"{name}: cannot open shared object file: No such file or directory":
                broken = broken or f"{name} exists, but cannot be loaded ({error}): install what it needs"
    else:
        raise ImportError(
            broken
            or f"libtutti was not found ({'; '.join(complaints)}): install Tutti (meson compile -C build && "
            "sudo meson install -C build --no-rebuild && sudo ldconfig), or set TUTTI_LIBRARY to the path of libtutti.so.0"
        )
    for name, arguments in PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = c_char_p if name in ("tuttiGetLastError", "tuttiGetErrorString") else c_int
    return library


def sentence(code: int, comm: int | None = None) -> str:
    """The message for a result other than success, with comm's last error, or this thread's if comm is None."""
    api = load()
    more = api.tuttiGetLastError(comm) or api.tuttiGetLastError(None) or b"no details are known"
    return f"Tutti: {api.tuttiGetErrorString(code).decode()} ({more.decode(errors='replace')})"


def address(name: str) -> int:
    """The address of one of the library's functions."""
    at = ctypes.cast(getattr(load(), name), c_void_p).value
    assert at is not None
    return at


class _Symbol(ctypes.Structure):
    """Dl_info of dlfcn.h"""

    _fields_ = [("file", c_char_p), ("base", c_void_p), ("name", c_char_p), ("address", c_void_p)]


def folder() -> Path:
    """The folder of the library that was loaded."""
    symbol = _Symbol()
    ctypes.CDLL(None).dladdr(c_void_p(address("tuttiGetVersion")), ctypes.byref(symbol))
    return Path(os.fsdecode(symbol.file or b"")).parent


def config(init_timeout_s: int, op_timeout_s: int, deterministic: bool = False, cuda_device: int | None = None) -> Config:
    """A non-blocking communicator's options; UNDEFINED_INT leaves a limit to the environment, as False does for
    `deterministic`."""
    version = c_int()
    load().tuttiGetVersion(ctypes.byref(version))
    return Config(
        *(ctypes.sizeof(Config), CONFIG_MAGIC, version.value, init_timeout_s, op_timeout_s, None, None),
        *(1 if deterministic else UNDEFINED_INT, 0, UNDEFINED_INT if cuda_device is None else cuda_device, UNDEFINED_INT, UNDEFINED_INT),
    )


def when_done(stream: int, finish: Callable[[int], None]) -> int:
    """The stream's thread calls finish(result), which must not raise, when all that is queued now is done. Returns a
    tuttiResult_t."""
    number = next(_numbers)
    _pending[number] = finish
    code = load().tuttiStreamAddCallback(stream, _report, c_void_p(number))
    if code != SUCCESS:
        del _pending[number]
    return code


def sizes(values: list[int]) -> ctypes.Array[c_size_t]:
    """A size_t array for the functions that take counts and displacements."""
    return (c_size_t * len(values))(*values)
