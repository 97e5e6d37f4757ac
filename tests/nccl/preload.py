"""With LD_PRELOAD=libnccl.so.2 a program that looks NCCL up finds this one; so does torch, where it is installed.

preload.py LIBRARY, which LD_PRELOAD has, too. `preload.py LIBRARY torch` is skipped where torch has no NCCL in it."""
import ctypes
import os
import sys

library = os.path.realpath(sys.argv[1])


def where(symbol):
    """The file that the loader took `symbol` from."""
    class Info(ctypes.Structure):
        _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("at", ctypes.c_void_p)]

    info = Info()
    everything = ctypes.CDLL(None)
    address = ctypes.cast(getattr(everything, symbol), ctypes.c_void_p)
    everything.dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
    assert everything.dladdr(address, ctypes.byref(info)) != 0, symbol
    return os.path.realpath(info.file.decode())


if sys.argv[2:] == ["torch"]:
    try:
        import torch
        from torch.distributed import is_nccl_available
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    if not is_nccl_available():
        print(f"skipped: torch {torch.__version__} was built without NCCL")
        sys.exit(77)
    print("torch sees NCCL", torch.cuda.nccl.version())

for name in ("ncclGetVersion", "ncclAllReduce", "ncclCommInitRankConfig", "pncclAllReduce"):
    assert where(name) == library, f"{name} is from {where(name)}"
version = ctypes.c_int()
assert ctypes.CDLL(None).ncclGetVersion(ctypes.byref(version)) == 0
print("NCCL", version.value, "from", library)
