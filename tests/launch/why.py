"""A rank of a job that hangs: why.py LIBTUTTI stop|late|works RANK

If RANK is to cause the hang it stops itself, or stays away, after a few operations; the others print what
tuttiCommExplainWait says once it names a cause that another host has reported, and wait to be ended.
"""
import ctypes
import os
import signal
import sys
import threading
import time

FLOAT32, SUM = 7, 0


def main():
    library, how, culprit = ctypes.CDLL(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    rank = int(os.environ["TUTTI_RANK"])
    comm, value = ctypes.c_void_p(), ctypes.c_float(1)
    assert library.tuttiCommInitFromEnv(ctypes.byref(comm), None) == 0

    def sum_up():
        at = ctypes.byref(value)
        library.tuttiAllReduce(at, at, ctypes.c_size_t(1), FLOAT32, SUM, comm, None)

    for _ in range(3):
        sum_up()
    print("ready", os.getpid(), flush=True)
    if rank == culprit:
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(3600)
    threading.Thread(target=sum_up, daemon=True).start()
    text = ctypes.create_string_buffer(4096)
    while f": rank {culprit} " not in text.value.decode():
        time.sleep(0.1)
        bytes_ = ctypes.c_size_t(len(text))
        assert library.tuttiCommExplainWait(comm, text, ctypes.byref(bytes_)) == 0
    print("why", text.value.decode(), flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
