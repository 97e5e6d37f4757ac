"""The ways in which training jobs hang: one small program each, which goes wrong on one rank.

A body runs on every rank, with the group joined and a barrier behind it. `culprit` is the rank that is to be named, and
`at_once`: it can be known without anybody's waiting for long."""
from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from made_up_gpu import made_up_gpu

FOR_EVER_S = 3600


class Job(NamedTuple):
    """What a body is given."""

    backend: str
    rank: int
    scratch: str
    timeout_s: float
    port: int

    def join(self, size: int, method: str = "") -> None:
        dist.init_process_group(
            self.backend,
            init_method=method or f"file://{self.scratch}/store",
            rank=self.rank,
            world_size=size,
            timeout=timedelta(seconds=self.timeout_s),
        )


@dataclass(frozen=True)
class Situation:
    name: str  # as in the table
    body: Callable[[Job], None]
    culprit: int | None = 1
    ranks: int = 2
    at_once: bool = False
    stuck: tuple[int, ...] = ()  # ranks that never end on their own
    dies: tuple[int, ...] = ()
    joined: bool = True
    goes_on: bool = False  # no error: at most a line in the log
    lacks: Callable[[], str] = str  # why it cannot run here, if anything is missing


SITUATIONS: dict[str, Situation] = {}


def situation(name: str, **options: Any) -> Callable[[Callable[[Job], None]], Callable[[Job], None]]:
    def keep(body: Callable[[Job], None]) -> Callable[[Job], None]:
        SITUATIONS[body.__name__] = Situation(name, body, **options)
        return body

    return keep


def _step(model: torch.nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 8)).sum()


# ---- training loops ----


@situation("uneven batches without join", at_once=True)
def uneven_batches(job: Job) -> None:
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    for _ in range(4 - job.rank):
        _step(model).backward()
    dist.barrier()


@situation("one rank skips a backward pass", at_once=True)
def skips_backward(job: Job) -> None:
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    for step in range(3):
        loss = _step(model)
        if not (job.rank == 1 and step == 2):
            loss.backward()
    dist.all_reduce(torch.zeros(1))


@situation("an exception on one rank between collectives", at_once=True)
def exception(job: Job) -> None:
    dist.all_reduce(torch.ones(4))
    if job.rank == 1:
        raise ValueError("sample 17 is not an image")
    dist.all_reduce(torch.ones(4))


class _TwoBranches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

    def forward(self, batch: torch.Tensor, both: bool) -> torch.Tensor:
        return self.left(batch) + self.right(batch) if both else self.left(batch)


@situation("parameters unused on one rank only", at_once=True)
def unused_parameters(job: Job) -> None:
    model = DistributedDataParallel(_TwoBranches())
    for _ in range(2):
        model(torch.ones(2, 8), job.rank == 0).sum().backward()


# ---- calls that differ ----


@situation("a collective within `if rank == 0`", culprit=0, at_once=True)
def only_on_rank_0(job: Job) -> None:
    if job.rank == 0:
        dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(4), 0)


@situation("two collectives in another order", at_once=True)
def other_order(job: Job) -> None:
    if job.rank == 0:
        dist.all_reduce(torch.ones(1024))
        dist.barrier()
    else:
        dist.barrier()
        dist.all_reduce(torch.ones(1024))


@situation("other shapes", at_once=True)
def other_shapes(job: Job) -> None:
    dist.all_reduce(torch.ones(32, 100 + job.rank))


@situation("other dtypes", at_once=True)
def other_dtypes(job: Job) -> None:
    dist.all_reduce(torch.ones(32, dtype=torch.float32 if job.rank == 0 else torch.float64))


# ---- ranks that do not come ----


@situation("a rank killed (out of memory)", at_once=True, dies=(1,))
def killed(job: Job) -> None:
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


@situation("a rank stopped (SIGSTOP, a debugger)", stuck=(1,))
def stopped(job: Job) -> None:
    dist.all_reduce(torch.ones(4))
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))


class _Slow(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            time.sleep(FOR_EVER_S)
        return torch.ones(4)


@situation("a rank stuck in its data loader", stuck=(1,))
def data_loader(job: Job) -> None:
    batches = DataLoader(_Slow(), num_workers=1) if job.rank == 1 else [torch.ones(4)] * 8
    for batch in batches:
        dist.all_reduce(batch)


@situation("a rank stuck in I/O", stuck=(1,))
def input_output(job: Job) -> None:
    dist.all_reduce(torch.ones(4))
    if job.rank == 1:
        os.mkfifo(f"{job.scratch}/fifo")
        open(f"{job.scratch}/fifo").close()  # it has no writer
    dist.all_reduce(torch.ones(4))


@situation("a rank killed whose forked loader workers hold its sockets", at_once=True, dies=(1,), stuck=(1,))
def forked_workers(job: Job) -> None:
    if job.rank == 1:
        if os.fork() == 0:
            time.sleep(FOR_EVER_S)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


@situation("a checkpoint on rank 0 that outlasts the timeout", culprit=0, stuck=(0,))
def checkpoint(job: Job) -> None:
    dist.all_reduce(torch.ones(4))
    if job.rank == 0:
        time.sleep(FOR_EVER_S)
    dist.barrier()


@situation("a rank that is merely slow", goes_on=True)
def slow(job: Job) -> None:
    dist.all_reduce(torch.ones(4))
    if job.rank == 1:
        time.sleep(4)
    dist.all_reduce(torch.ones(4))


@situation("two groups in another order, by two threads", culprit=None)
def two_groups(job: Job) -> None:
    """The threads run alternately, as those do that share a GPU or a lock."""
    groups = [dist.new_group(timeout=timedelta(seconds=job.timeout_s)) for _ in range(2)]
    lock, errors = threading.Lock(), []

    def use(group: Any) -> None:
        with lock:
            try:
                dist.all_reduce(torch.ones(4), group=group)
            except RuntimeError as error:
                errors.append(error)

    threads = [threading.Thread(target=use, args=(group,)) for group in (groups if job.rank == 0 else groups[::-1])]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@situation("a GPU stream that waits for another rank's", stuck=(1,))
def gpu_stream(job: Job) -> None:
    """No host waits for anybody: rank 1's operation is queued behind a kernel that does not end. The GPU is made up."""
    tensor = torch.ones(4)  # outlives the device's use of it: nothing else keeps host memory that passes for a device's
    with made_up_gpu() as cuda:
        dist.all_reduce(tensor)
        cuda.now.synchronize()
        if job.rank == 1:
            cuda.now.kernel(lambda: time.sleep(FOR_EVER_S))
        dist.all_reduce(tensor)
        with contextlib.suppress(AssertionError):
            cuda.now.synchronize()
        dist.all_reduce(tensor)


# ---- groups that do not form ----


@situation("a wrong world size on one rank", joined=False)
def wrong_world_size(job: Job) -> None:
    job.join(2 + job.rank)
    dist.barrier()


@situation("a missing rank", culprit=2, joined=False)
def missing_rank(job: Job) -> None:
    job.join(3)


@situation("a wrong port on one rank", joined=False)
def wrong_port(job: Job) -> None:
    job.join(2, f"tcp://127.0.0.1:{job.port + job.rank}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _lacks_hosts() -> str:
    """Why network namespaces cannot stand for hosts here; empty if they can."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return "making network namespaces needs root and ip (Debian: iproute2)"
    tried = subprocess.run(["unshare", "--net", "ip", "link", "add", "host0", "type", "veth", "peer", "name", "host1"])
    return "network namespaces cannot be made here" if tried.returncode != 0 else ""


def _move_to_host_of_its_own(job: Job) -> None:
    """Two hosts that see each other, but whose packets a firewall silently drops: they go to no network card."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:  # CLONE_NEWNET
        raise OSError(ctypes.get_errno(), "unshare")
    pid, linked = f"{job.scratch}/pid", f"{job.scratch}/linked"
    if job.rank == 0:
        with open(pid + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(pid + ".new", pid)
    while not os.path.exists(pid if job.rank == 1 else linked):
        time.sleep(0.01)
    if job.rank == 1:
        with open(pid) as file:
            _ip("link", "add", "host1", "type", "veth", "peer", "name", "host0", "netns", file.read())
        open(linked, "w").close()
    device, other = f"host{job.rank}", f"10.83.0.{2 - job.rank}"
    _ip("addr", "add", f"10.83.0.{1 + job.rank}/24", "dev", device)
    _ip("link", "set", "lo", "up")
    _ip("link", "set", device, "up")
    _ip("neigh", "replace", other, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", device)
    os.environ.update(GLOO_SOCKET_IFNAME=device, TUTTI_SOCKET_IFNAME=device)


@situation("a firewall between two hosts", joined=False, lacks=_lacks_hosts)
def firewall(job: Job) -> None:
    """The store can be reached, as through an open port."""
    _move_to_host_of_its_own(job)
    job.join(2)
    dist.barrier()


# ---- asynchronous operations ----


@situation("`wait()` never called, and the operation failed", goes_on=True)
def never_waits(job: Job) -> None:
    dist.all_reduce(torch.ones(4 + job.rank), async_op=True)


@situation("an asynchronous result read before `wait()`", culprit=None, goes_on=True)
def reads_early(job: Job) -> None:
    tensor = torch.ones(1 << 20)
    work = dist.all_reduce(tensor, async_op=True)
    tensor.sum()
    work.wait()
