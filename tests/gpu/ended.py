"""Whatever ends tools/gpu-check ends the step that it has started, in a build folder that is made up."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
GENEROUS_SECONDS = 30


def obey_signals():
    """A shell, or nohup, may have started this script with the signals ignored."""
    for sign in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, signal.SIG_DFL)


def wait_until(what, holds):
    end = time.monotonic() + GENEROUS_SECONDS
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"not within {GENEROUS_SECONDS} s: {what}")
        time.sleep(0.02)


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def check(folder, sign):
    started = folder / "started"
    started.unlink(missing_ok=True)
    process = subprocess.Popen([ROOT / "tools/gpu-check", "--dry-run", "--build", folder], stdout=subprocess.DEVNULL,
                               preexec_fn=obey_signals)
    wait_until("the step runs", lambda: started.exists() and started.read_text(encoding="utf-8").endswith("\n"))
    pids = started.read_text(encoding="utf-8").split()
    process.send_signal(sign)
    status = process.wait(GENEROUS_SECONDS)
    if status != 128 + sign:
        sys.exit(f"{sign.name}: the exit status is {status}")
    wait_until(f"{sign.name} ends the step, too", lambda: not any(map(runs, pids)))


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for library in ("tests/cuda/libcudart.so.13", "tests/cuda/libtutti.so.0"):
            (folder / library).parent.mkdir(parents=True, exist_ok=True)
            (folder / library).touch()
        program = folder / "tests/gpu/made_up_twins"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\nsleep 1000 &\necho $$ $! >{folder}/started\nwait\n", encoding="utf-8")
        os.chmod(program, 0o755)
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            check(folder, sign)


if __name__ == "__main__":
    main()
