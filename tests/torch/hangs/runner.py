"""Runs the situations, several in parallel, and records what every rank says, and when."""
from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait

import torch
import torch._dynamo  # imported by DistributedDataParallel: once, before the forks
import torch.distributed as dist

from hangs.situations import SITUATIONS, Job, Situation


@dataclass
class Outcome:
    """The end of one rank. Seconds count from the moment when all was well."""

    how: str = "hangs"  # "error", "ended", "died"
    text: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    situation: Situation
    ranks: list[Outcome]
    log: list[tuple[float, int, str]] = field(default_factory=list)  # seconds, rank, line

    def said(self) -> str:
        """Everything that the ranks have said."""
        return "\n".join([o.text for o in self.ranks if o.text] + [line for _, _, line in self.log])


def _end_as_programs_do(error: BaseException) -> None:
    sys.last_value = error
    atexit._run_exitfuncs()


def _child(situation: Situation, job: Job, pipe: Connection) -> None:
    os.setsid()
    os.dup2(os.open(f"{job.scratch}/log.{job.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    torch.set_num_threads(1)
    status = 0
    try:
        if situation.joined:
            job.join(situation.ranks)
            dist.barrier()
        pipe.send(("begins", time.monotonic(), ""))
        situation.body(job)
        dist.destroy_process_group()
        pipe.send(("ended", time.monotonic(), ""))
    except BaseException as error:  # noqa: BLE001  # the parent reports it
        pipe.send(("error", time.monotonic(), f"{type(error).__name__}: {error}"))
        status = 1
        _end_as_programs_do(error)
    os._exit(status)


class _Running:
    def __init__(self, situation: Situation, backend: str, timeout_s: float, limit_s: float) -> None:
        context = multiprocessing.get_context("fork")
        self.situation = situation
        # Not a TemporaryDirectory: children that exit normally would remove it.
        self.scratch = tempfile.mkdtemp()
        self.report = Report(situation, [Outcome() for _ in range(situation.ranks)])
        self.end = time.monotonic() + limit_s
        self.began = time.monotonic()
        self.children, self.pipes = [], {}
        self._logs = [0] * situation.ranks
        port = _two_free_ports()
        for rank in range(situation.ranks):
            ours, theirs = context.Pipe(duplex=False)
            job = Job(backend, rank, self.scratch, timeout_s, port)
            child = context.Process(target=_child, args=(situation, job, theirs))
            child.start()
            theirs.close()
            self.children.append(child)
            self.pipes[ours] = rank

    def is_over(self) -> bool:
        return set(self.pipes.values()) <= set(self.situation.stuck) or time.monotonic() > self.end

    def hear(self, pipe: Connection) -> None:
        rank = self.pipes[pipe]
        outcome = self.report.ranks[rank]
        try:
            how, when, text = pipe.recv()
        except EOFError:
            del self.pipes[pipe]
            if outcome.how == "hangs":
                outcome.how, outcome.seconds = "died", time.monotonic() - self.began
            return
        if how == "begins":
            self.began = max(self.began, when)
            return
        outcome.how, outcome.text, outcome.seconds = how, text, when - self.began

    def read_logs(self) -> None:
        for rank in range(self.situation.ranks):
            with contextlib.suppress(FileNotFoundError), open(f"{self.scratch}/log.{rank}", errors="replace") as log:
                log.seek(self._logs[rank])
                for line in log.read().splitlines():
                    self.report.log.append((time.monotonic() - self.began, rank, line))
                self._logs[rank] = log.tell()

    def finish(self) -> Report:
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its whole session, with workers
            child.join()
        self.read_logs()
        shutil.rmtree(self.scratch, ignore_errors=True)
        return self.report


def _two_free_ports() -> int:
    """The first of two consecutive free ports."""
    while True:
        with socket.socket() as one, socket.socket() as next_one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                next_one.bind(("127.0.0.1", port + 1))
                return port


def run(names: list[str], backend: str, timeout_s: float, limit_s: float, side_by_side: int = 4) -> dict[str, Report]:
    waiting, running, reports = list(names), [], {}
    try:
        while waiting or running:
            while waiting and len(running) < side_by_side:
                running.append((waiting[0], _Running(SITUATIONS[waiting[0]], backend, timeout_s, limit_s)))
                del waiting[0]
            pipes = {pipe: one for _, one in running for pipe in one.pipes}
            for pipe in wait(list(pipes), timeout=0.05):
                pipes[pipe].hear(pipe)
            for _, one in running:
                one.read_logs()
            for name, one in running:
                if one.is_over():
                    reports[name] = one.finish()
            running = [(name, one) for name, one in running if name not in reports]
    finally:
        for _, one in running:
            one.finish()
    return {name: reports[name] for name in names}


# Where a message says that a call was made: lines of the situations' file.
PLACE = re.compile(r"situations\.py:(\d+)")
