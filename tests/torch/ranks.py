"""Runs a test's body in several processes, each a rank of a Tutti group."""
from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import tempfile
import time
import traceback
import unittest
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import prerequisites

# Generous, because the machine may be busy, and it is only for hangs.
LIMIT_S = 240.0

Body = Callable[..., None]


def init(backend: str, path: str, rank: int, size: int, timeout_s: float = 120) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group(
        backend, init_method=f"file://{path}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )


def _child(body: Body, path: str, rank: int, size: int, joined: bool, pipe: Connection) -> None:
    unittest.TestCase.subTest = lambda *_, **__: contextlib.nullcontext()  # it would report a failure in this process only
    try:
        if joined:
            import torch.distributed as dist

            init(prerequisites.BACKEND, path, rank, size)
            body(rank, size)
            dist.destroy_process_group()
        else:
            body(rank, size, path)
        pipe.send(None)
    except BaseException:  # noqa: BLE001  # the parent reports it
        pipe.send(traceback.format_exc())
    pipe.close()
    os._exit(0)


def run(body: Body, size: int, joined: bool = True, limit_s: float = LIMIT_S, dies: int | None = None) -> None:
    """body(rank, size) on each of `size` ranks of the group; not joined: body(rank, size, path), which joins by itself
    or not at all. The rank `dies` ends on purpose, with os._exit(0) before it answers, or by a signal."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as scratch:
        children, pipes = [], {}
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_child, args=(body, f"{scratch}/store", rank, size, joined, theirs))
            child.start()
            theirs.close()
            children.append(child)
            pipes[ours] = rank
        failures, end = {}, time.monotonic() + limit_s
        try:
            while pipes:
                ready = wait(list(pipes), timeout=max(0.0, end - time.monotonic()))
                if not ready:
                    raise AssertionError(f"ranks {sorted(pipes.values())} of {size} hang; others said: {failures}")
                for pipe in ready:
                    rank = pipes.pop(pipe)
                    try:
                        failure = pipe.recv()
                        if rank == dies:
                            failure = failure or "it was to die"
                    except EOFError:
                        failure = None if rank == dies else "it died"
                    if failure is not None:
                        failures[rank] = failure
        finally:
            for child in children:
                child.join(5 if not pipes else 0)
                if child.is_alive():
                    child.kill()
                    child.join()
        if failures:
            raise AssertionError("\n".join(f"rank {rank} of {size}:\n{text}" for rank, text in sorted(failures.items())))


def on(*sizes: int) -> Callable[[Body], Callable[[unittest.TestCase], None]]:
    """Runs the test's body on that many ranks, once for each number."""

    def decorate(body: Body) -> Callable[[unittest.TestCase], None]:
        @functools.wraps(body)
        def test(self: unittest.TestCase) -> None:
            for size in sizes:
                with self.subTest(ranks=size):
                    run(functools.partial(body, self), size)

        return test

    return decorate


def main(*modules: str) -> None:
    """Runs the tests of the calling script, or says why it cannot."""
    prerequisites.require(*modules)
    unittest.main(module="__main__", verbosity=2)


def expect(condition: Any, what: str) -> None:
    """For bodies without a TestCase."""
    if not condition:
        raise AssertionError(what)
