#!/usr/bin/env python3
"""Times torch.distributed.all_reduce, and steps of DDP, on Tutti and on gloo, interleaved in the same processes; and
tutti_torch.all_reduce_.

    PYTHONPATH=lib/torch python3 tools/torch/torch_all_reduce_perf.py --ranks 2,4
"""
from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

BACKENDS = ("tutti", "gloo")


def size_of(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1].upper() in units else int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", default="2", help="numbers of processes, e.g. 2,4")
    parser.add_argument("-b", "--min-bytes", type=size_of, default=8)
    parser.add_argument("-e", "--max-bytes", type=size_of, default=size_of("64M"))
    parser.add_argument("-f", "--factor", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each backend; medians are shown")
    parser.add_argument("--seconds", type=float, default=0.1, help="how long a turn takes, about")
    parser.add_argument("--async-op", action="store_true", help="all_reduce(..., async_op=True).wait()")
    parser.add_argument("--ddp", type=float, default=0, metavar="MILLIONS", help="also a model of so many parameters")
    parser.add_argument("--no-sizes", action="store_true", help="only --ddp")
    return parser.parse_args()


def timed(action: Callable[[], None], times: int, group: Any) -> float:
    """Microseconds for each of `times`, as the slowest rank sees it."""
    import torch
    import torch.distributed as dist

    dist.barrier(group=group)
    started = time.perf_counter()
    for _ in range(times):
        action()
    spent = torch.tensor([(time.perf_counter() - started) / times * 1e6])
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return spent.item()


def interleaved(actions: dict[str, tuple[Callable[[], None], Any]], options: argparse.Namespace) -> dict[str, float]:
    """The median of every action's turns. Each turn begins with one call that is not counted."""
    times, results = {}, {name: [] for name in actions}
    for name, (action, group) in actions.items():
        action()
        times[name] = max(1, min(5000, int(options.seconds * 1e6 / timed(action, 2, group))))
    for _ in range(options.repeats):
        for name, (action, group) in actions.items():
            action()
            results[name].append(timed(action, times[name], group))
    return {name: statistics.median(turns) for name, turns in results.items()}


def measure_sizes(rank: int, groups: dict[str, Any], options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    import tutti_torch

    if rank == 0:
        print(f"{'bytes':>10} {'tutti (us)':>12} {'gloo (us)':>12} {'tutti/gloo':>11} {'all_reduce_ (us)':>17}", flush=True)
    size = options.min_bytes
    while size <= options.max_bytes:
        tensor = torch.ones(max(1, size // 4))

        def reduce(group: Any, tensor: torch.Tensor = tensor) -> None:
            work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group, async_op=options.async_op)
            if work is not None:
                work.wait()

        actions = {b: (lambda g=groups[b]: reduce(g), groups[b]) for b in BACKENDS}
        actions["direct"] = (lambda tensor=tensor: tutti_torch.all_reduce_(tensor, "max"), groups["tutti"])
        medians = interleaved(actions, options)
        if rank == 0:
            ratio = medians["tutti"] / medians["gloo"]
            columns = f"{size:>10} {medians['tutti']:>12.1f} {medians['gloo']:>12.1f} {ratio:>11.3f}"
            print(f"{columns} {medians['direct']:>17.1f}", flush=True)
        size *= options.factor


def keep_bucket(_, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
    """A communication hook that communicates nothing: what is left are DDP's own copies."""
    import torch

    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def measure_ddp(rank: int, groups: dict[str, Any], options: argparse.Namespace) -> None:
    """Forward and backward. What communication costs is the step less the same step without it: under no_sync, which has
    no buckets either, and with buckets that are filled and emptied but not reduced."""
    import torch
    import tutti_torch
    from torch.nn.parallel import DistributedDataParallel

    width = int((options.ddp * 1e6 / 6) ** 0.5)
    batch = torch.randn(4, width)

    def step_of(group: Any, prepare: Callable[[Any], None] | None = None, sync: bool = True) -> Callable[[], None]:
        layers = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(6)))
        model = DistributedDataParallel(layers, process_group=group)
        if prepare is not None:
            prepare(model)

        def step() -> None:
            if sync:
                model(batch).sum().backward()
                return
            with model.no_sync():
                model(batch).sum().backward()

        for _ in range(3):
            step()
        return step

    tutti, gloo = groups["tutti"], groups["gloo"]
    actions = {
        "tutti": (step_of(tutti), tutti),
        "tutti, registered": (step_of(tutti, tutti_torch.use_registered_buckets), tutti),
        "gloo": (step_of(gloo), gloo),
        "no_sync": (step_of(tutti, sync=False), tutti),
        "buckets only": (step_of(tutti, lambda model: model.register_comm_hook(None, keep_bucket)), tutti),
    }
    medians = interleaved(actions, options)
    compute, copies = medians.pop("no_sync"), medians.pop("buckets only")
    if rank == 0:
        print(f"DDP, {6 * width * width / 1e6:.1f} million parameters; without communication {compute / 1e3:.1f} ms under "
              f"no_sync, {copies / 1e3:.1f} ms with buckets")
        print(f"{'backend':>18} {'step (ms)':>10} {'over no_sync':>13} {'of gloo':>8} {'over buckets':>13} {'of gloo':>8}")
        theirs = medians["gloo"]
        for name, step in medians.items():
            columns = [f"{(step - base) / 1e3:>13.1f} {(step - base) / (theirs - base):>8.2f}" for base in (compute, copies)]
            print(f"{name:>18} {step / 1e3:>10.1f} {' '.join(columns)}", flush=True)


def run_rank(rank: int, size: int, path: str, options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    import tutti_torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group("tutti", init_method=f"file://{path}", rank=rank, world_size=size)
    groups = {"tutti": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if rank == 0:
        print(f"# {size} ranks, torch {torch.__version__}, median of {options.repeats} turns", flush=True)
    if not options.no_sizes:
        measure_sizes(rank, groups, options)
    if options.ddp:
        measure_ddp(rank, groups, options)
    dist.destroy_process_group()


def main() -> None:
    options = arguments()
    context = multiprocessing.get_context("spawn")
    for size in map(int, options.ranks.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            ranks = [context.Process(target=run_rank, args=(r, size, f"{scratch}/store", options)) for r in range(size)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            if any(process.exitcode for process in ranks):
                raise SystemExit(f"ranks ended with {[process.exitcode for process in ranks]}")


if __name__ == "__main__":
    main()
