"""A profiler that knows NVTX sees every operation: nvtx.py LIBTUTTI TEST_CUDA [TOOL]

TEST_CUDA has ranks on made-up GPUs, TOOL is the made-up profiler of nvtx_tool.c. Exits 77 (skipped) without it: there was no <nvtx3/nvToolsExt.h> to build with.
"""
import ctypes
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

FLOAT32, SUM, RANKS = 7, 0, 2
# The calls of be_rank, with the bytes of each.
EXPECTED = {("AllReduce", 4000): 2, ("Broadcast", 12): 1, ("SendRecv", 20): 1, ("AllReduce", 4): 20, ("Finalize", 0): 1}


def be_rank(path):
    library, comm = ctypes.CDLL(path), ctypes.c_void_p()
    rank, size = int(os.environ["TUTTI_RANK"]), ctypes.c_size_t
    assert library.tuttiCommInitFromEnv(ctypes.byref(comm), None) == 0
    data = (ctypes.c_float * 1000)()
    for _ in range(2):
        assert library.tuttiAllReduce(data, data, size(1000), FLOAT32, SUM, comm, None) == 0
    assert library.tuttiBroadcast(data, data, size(3), FLOAT32, 0, comm, None) == 0
    passes = library.tuttiRecv if rank else library.tuttiSend
    assert passes(data, size(5), FLOAT32, 1 - rank, comm, None) == 0
    stream = ctypes.c_void_p()
    assert library.tuttiStreamCreate(ctypes.byref(stream)) == 0
    for _ in range(20):
        assert library.tuttiAllReduce(data, data, size(1), FLOAT32, SUM, comm, stream) == 0
    assert library.tuttiStreamSynchronize(stream) == 0 and library.tuttiStreamDestroy(stream) == 0
    assert library.tuttiCommFinalize(comm) == 0 and library.tuttiCommDestroy(comm) == 0


def ranges_of(lines):
    """Names and bytes of the ranges that have begun; checks that a thread's range ends before its next one begins."""
    begun, names = {}, []
    for sign, domain, thread, *what in (line.split() for line in lines):
        assert domain == "tutti" and begun.get(thread, False) == (sign == "-"), lines
        begun[thread] = sign == "+"
        if sign == "+":
            names.append((what[0], int(what[1])))
    assert not any(begun.values()), "a range has not ended"
    return Counter(names), len(begun)


def profile_gpus(program, profiled):
    """Such an operation is a range of the thread that enqueues it, though another one sees its end."""
    subprocess.run([program, "an operation on another stream comes after those before it"], env=profiled, check=True)
    found, _ = ranges_of(Path(profiled["NVTX_TOOL_OUT"]).read_text().splitlines())
    print(dict(found))
    assert found["AllReduce", 400_000] >= 40, found


def main():
    library, on_gpus, *tools = sys.argv[1:]
    if not tools:
        print("skipped: there was no <nvtx3/nvToolsExt.h> (it comes with the CUDA toolkit)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        of_profiler = {"NVTX_INJECTION64_PATH": tools[0], "NVTX_TOOL_OUT": f"{folder}/ranges"}
        ranks = []
        for rank in range(RANKS):
            environment = {**os.environ, "TUTTI_RANK": str(rank), "TUTTI_NRANKS": str(RANKS), "TUTTI_TRACE_DIR": folder,
                           "TUTTI_ROOT": f"127.0.0.1:{20000 + os.getpid() % 10000}", "TUTTI_SECRET": "nvtx"}
            if rank == 0:  # the other rank has no profiler
                environment.update(of_profiler)
            ranks.append(subprocess.Popen([sys.executable, __file__, "rank", library], env=environment))
        assert [rank.wait(60) for rank in ranks] == [0] * RANKS
        found, threads = ranges_of(Path(f"{folder}/ranges").read_text().splitlines())
        profile_gpus(on_gpus, {**os.environ, **of_profiler})
    print(dict(found))
    assert found == EXPECTED, found
    assert threads == 2, "a stream's operations are on its own thread"
    return 0


if __name__ == "__main__":
    sys.exit(be_rank(sys.argv[2]) if sys.argv[1] == "rank" else main())
