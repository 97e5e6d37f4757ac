"""A rank of a job: late.py LIBTUTTI LATE

Rank LATE comes 20 ms late to every second all-reduce, until all ranks know that from tuttiCommLateness. A rank that
blames another one fails.
"""
import ctypes
import os
import sys
import time

FLOAT32, MIN = 7, 3


class Lateness(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("operations", ctypes.c_uint64), ("late", ctypes.c_uint64)]
    _fields_ += [(name, ctypes.c_double) for name in ("late_s", "worst_s", "waited_s")]


def main():
    library, late = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
    rank, ranks = int(os.environ["TUTTI_RANK"]), int(os.environ["TUTTI_NRANKS"])
    comm = ctypes.c_void_p()
    assert library.tuttiCommInitFromEnv(ctypes.byref(comm), None) == 0

    def all_agree(known):
        value = ctypes.c_float(known)
        at = ctypes.byref(value)
        assert library.tuttiAllReduce(at, at, ctypes.c_size_t(1), FLOAT32, MIN, comm, None) == 0
        return value.value == 1

    def lateness(of):
        found = Lateness(ctypes.sizeof(Lateness))
        assert library.tuttiCommLateness(comm, of, ctypes.byref(found)) == 0
        return found

    steps, known = 0, False
    end = time.monotonic() + 20  # metrics ask once a second, and use the answers of a second ago
    while not all_agree(known and time.monotonic() > end):
        steps += 1
        if rank == late and steps % 2:
            time.sleep(0.02)
        if steps % 100 == 99:
            all_found = [lateness(of) for of in range(ranks)]
            known = all(found.operations >= 20 for found in all_found) and all_found[late].late >= 10
            print("late", [f"{found.late} of {found.operations}" for found in all_found], flush=True)
            # Shares, because for some ranks there is only a sample.
            shares = [found.late / max(found.operations, 1) for found in all_found]
            assert not known or all(5 * shares[i] < shares[late] for i in range(ranks) if i != late)
    assert library.tuttiCommFinalize(comm) == 0 and library.tuttiCommDestroy(comm) == 0


if __name__ == "__main__":
    main()
