"""Processes that only use CPU time, for measuring beside others' work."""
import contextlib
import ctypes
import os
import signal
import subprocess

COMMAND = ["sh", "-c", "while :; do :; done"]
PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def busy(count):
    """Keeps `count` of them running. They end with the context, however it ends, and with this process, even if that is
    killed."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def end_with_parent():
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    processes = []
    try:
        for _ in range(count):
            processes.append(subprocess.Popen(COMMAND, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent))
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
