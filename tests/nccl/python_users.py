"""Two ranks of a program in Python that loads NCCL itself and finds this library: all_reduce on host memory is right, and that
there is no GPU is said once for both.

python_users.py LIBRARY ctypes     in vLLM's way: the library that VLLM_NCCL_SO_PATH names, by ctypes
python_users.py LIBRARY nccl4py    NVIDIA's bindings, which find the library that LD_PRELOAD has loaded; skipped without them
"""
import ctypes
import os
import subprocess
import sys
import tempfile
import time

COUNT, FLOAT, SUM, RANKS = 1000, 7, 0, 2


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class ByCtypes:
    """The functions that vLLM's communicator uses, with its types."""

    def __init__(self):
        self.nccl = ctypes.CDLL(os.environ["VLLM_NCCL_SO_PATH"])
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
        pointer = ctypes.c_void_p
        self.nccl.ncclAllReduce.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, pointer, pointer]
        self.nccl.ncclCommDestroy.argtypes = [pointer]

    def check(self, result):
        assert result == 0, self.nccl.ncclGetErrorString(result)

    def version(self):
        found = ctypes.c_int()
        self.check(self.nccl.ncclGetVersion(ctypes.byref(found)))
        return found.value

    def make_id(self):
        made = UniqueId()
        self.check(self.nccl.ncclGetUniqueId(ctypes.byref(made)))
        return bytes(made)

    def init(self, unique, rank):
        comm = ctypes.c_void_p()
        self.check(self.nccl.ncclCommInitRank(ctypes.byref(comm), RANKS, UniqueId.from_buffer_copy(unique), rank))
        return comm

    def all_reduce(self, at, comm):
        self.check(self.nccl.ncclAllReduce(at, at, COUNT, FLOAT, SUM, comm, None))

    def destroy(self, comm):
        self.check(self.nccl.ncclCommDestroy(comm))


class ByNccl4py:
    def __init__(self):
        from nccl.bindings import nccl
        self.nccl, self.version = nccl, nccl.get_version

    def make_id(self):
        made = self.nccl.get_unique_id()
        return ctypes.string_at(made.ptr, ctypes.sizeof(UniqueId))

    def init(self, unique, rank):
        made = self.nccl.UniqueId()
        ctypes.memmove(made.ptr, unique, len(unique))
        return self.nccl.comm_init_rank(RANKS, made, rank)

    def all_reduce(self, at, comm):
        self.nccl.all_reduce(at, at, COUNT, FLOAT, SUM, comm, 0)

    def destroy(self, comm):
        self.nccl.comm_destroy(comm)


def be_rank(way, rank, path):
    nccl = {"ctypes": ByCtypes, "nccl4py": ByNccl4py}[way]()
    assert nccl.version() == 23203, nccl.version()
    if rank == 0:
        with open(path + ".new", "wb") as file:
            file.write(nccl.make_id())
        os.rename(path + ".new", path)
    end = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < end, "rank 0 has made no id"
        time.sleep(0.01)
    with open(path, "rb") as file:
        comm = nccl.init(file.read(), rank)
    data = (ctypes.c_float * COUNT)(*(i * (rank + 1) for i in range(COUNT)))
    nccl.all_reduce(ctypes.addressof(data), comm)
    assert list(data) == [3 * i for i in range(COUNT)], list(data)[:10]
    nccl.destroy(comm)


def main():
    library, way = os.path.realpath(sys.argv[1]), sys.argv[2]
    if len(sys.argv) > 3:
        return be_rank(way, int(sys.argv[3]), sys.argv[4])
    if way == "nccl4py":
        try:
            import nccl.bindings  # noqa: F401
        except ImportError as error:
            print(f"skipped: {error} (pip install nccl4py)")
            sys.exit(77)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "VLLM_NCCL_SO_PATH": library}
    with tempfile.TemporaryDirectory() as scratch:
        ranks = [subprocess.Popen([sys.executable, __file__, library, way, str(rank), f"{scratch}/id"], env=environment,
                                  stderr=subprocess.PIPE, text=True) for rank in range(RANKS)]
        said = "".join(process.communicate(timeout=100)[1] for process in ranks)
    print(said)
    assert all(process.returncode == 0 for process in ranks), said
    assert said.count("there is no CUDA device here") == 1, said
    print(f"ok: {way}")


if __name__ == "__main__":
    main()
