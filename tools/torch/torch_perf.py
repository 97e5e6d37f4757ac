#!/usr/bin/env python3
"""Times collectives of torch.distributed, and steps of DDP, on Tutti and on gloo, and all-reduces of DeepSpeed and vLLM where
these are installed: all in turns, in the same processes.

    PYTHONPATH=lib/torch python3 tools/torch/torch_perf.py --ranks 2,4
    PYTHONPATH=lib/torch python3 tools/torch/torch_perf.py --op broadcast -e 1M

"direct" is tutti_torch.all_reduce_. Sizes are of the larger array: what all_gather has written, what reduce_scatter reads.
"""
from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

OPERATIONS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier")


def size_of(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1].upper()] if text[-1:].upper() in units else int(text)


def ranks_of(text: str) -> list[int]:
    numbers = [int(number) for number in text.split(",")]
    if min(numbers) < 1:
        raise ValueError
    return numbers


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=OPERATIONS, default="all_reduce")
    parser.add_argument("--peers", type=lambda names: [name for name in names.split(",") if name], metavar="NAMES",
                        help="compare with these besides gloo: deepspeed,vllm, or '' for none; default: those installed")
    parser.add_argument("--ranks", type=ranks_of, default=[2], help="numbers of processes, e.g. 2,4")
    parser.add_argument("-b", "--min-bytes", type=size_of, default=8)
    parser.add_argument("-e", "--max-bytes", type=size_of, default=size_of("64M"))
    parser.add_argument("-f", "--factor", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each backend; medians are shown")
    parser.add_argument("--seconds", type=float, default=0.1, help="how long a turn takes, about")
    parser.add_argument("--bind", action="store_true", help="bind each rank to a CPU of its own, or in turn if there are fewer")
    parser.add_argument("--async-op", action="store_true", help="all_reduce(..., async_op=True).wait()")
    parser.add_argument("--ddp", type=float, default=0, metavar="MILLIONS", help="also a model with this many parameters")
    parser.add_argument("--no-sizes", action="store_true", help="only --ddp")
    options = parser.parse_args()
    if options.min_bytes < 1 or options.factor < 2 or options.repeats < 1:
        parser.error("--min-bytes and --repeats: at least 1; --factor: at least 2")
    return options


def timed(action: Callable[[], None], times: int, group: Any) -> float:
    """Microseconds for each of `times`, on the slowest rank."""
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


def call_of(operation: str, group: Any, async_op: bool) -> Callable[[Any, Any], None]:
    """torch.distributed's call: function(output, input)."""
    import torch.distributed as dist

    calls: dict[str, Callable[[Any, Any], Any]] = {
        "all_reduce": lambda output, _: dist.all_reduce(output, group=group, async_op=async_op),
        "broadcast": lambda output, _: dist.broadcast(output, 0, group=group, async_op=async_op),
        "reduce": lambda output, _: dist.reduce(output, 0, group=group, async_op=async_op),
        "all_gather": lambda output, input_: dist.all_gather_into_tensor(output, input_, group=group, async_op=async_op),
        "reduce_scatter": lambda output, input_: dist.reduce_scatter_tensor(output, input_, group=group, async_op=async_op),
        "barrier": lambda *_: dist.barrier(group=group, async_op=async_op),
    }
    call = calls[operation]

    def call_and_wait(output: Any, input_: Any) -> None:
        work = call(output, input_)
        if async_op:
            work.wait()

    return call_and_wait if async_op else call


def calls_of(operation: str, groups: dict[str, Any], peers: dict[str, Any], async_op: bool) -> dict[str, Callable[[Any, Any], None]]:
    """The calls of all libraries that have the operation, by their names in the table."""
    import tutti_torch

    calls = {name: call_of(operation, group, async_op) for name, group in groups.items()}
    if operation == "all_reduce":
        calls["direct"] = lambda output, _: tutti_torch.all_reduce_(output, group=groups["tutti"])
    return calls | {name: peer[operation] for name, peer in peers.items() if operation in peer}


def check(name: str, operation: str, call: Callable[[Any, Any], None], output: Any, input_: Any, rank: int, size: int) -> None:
    """Checks the operation once before it is timed, with ones from all ranks."""
    has_input = operation in ("all_reduce", "reduce", "barrier") or (operation == "broadcast" and rank == 0)
    output.fill_(1 if has_input else 0)
    input_.fill_(1)
    call(output, input_)
    sums = operation in ("all_reduce", "reduce_scatter") or operation == "reduce" and rank == 0
    if operation != "reduce" or rank == 0:
        wrong = int((output != (size if sums else 1)).sum())
        if wrong:
            raise SystemExit(f"{operation} of {name}: {wrong} of {output.numel()} elements are wrong on rank {rank}")


def measure_sizes(rank: int, groups: dict[str, Any], peers: dict[str, Any], options: argparse.Namespace) -> None:
    import torch

    ranks = groups["tutti"].size()
    calls = calls_of(options.op, groups, peers, options.async_op)
    ours = [name for name in ("tutti", "direct") if name in calls]
    others = [name for name in calls if name not in ours]
    if rank == 0:
        names = [f"{name} (us)" for name in ours + others] + [f"{name}/best" for name in ours]
        print(f"# {options.op}\n{'bytes':>10} " + " ".join(f"{name:>14}" for name in names), flush=True)
    size = 0 if options.op == "barrier" else options.min_bytes
    while size <= options.max_bytes:
        elems = max(1, size // 4 // ranks)
        output = torch.zeros(elems if options.op == "reduce_scatter" else max(1, size // 4))
        input_ = torch.zeros(elems * ranks if options.op == "reduce_scatter" else elems)
        if options.op == "all_gather":
            output = torch.zeros(elems * ranks)
        for name, call in calls.items():
            check(name, options.op, call, output, input_, rank, ranks)
        output.zero_()
        input_.zero_()
        actions = {name: (lambda call=call: call(output, input_), groups.get(name, groups["tutti"])) for name, call in calls.items()}
        medians = interleaved(actions, options)
        if rank == 0:
            best = min(medians[name] for name in others)
            columns = [f"{medians[name]:>14.1f}" for name in ours + others] + [f"{medians[name] / best:>14.2f}" for name in ours]
            print(f"{size:>10} " + " ".join(columns), flush=True)
        if options.op == "barrier":
            break
        size *= options.factor


def keep_bucket(_, bucket):  # DDP refuses annotations that are strings
    """A communication hook that communicates nothing: what remains are DDP's own copies."""
    import torch

    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def measure_ddp(rank: int, groups: dict[str, Any], options: argparse.Namespace) -> None:
    """Forward and backward pass. The cost of communication is the step less the same step without it: under no_sync, which
    has no buckets either, and with buckets that are filled and emptied but not reduced."""
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
    import peers
    import torch
    import torch.distributed as dist
    import tutti_torch  # noqa: F401

    torch.set_num_threads(1)
    if options.bind:
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    dist.init_process_group("tutti", init_method=f"file://{path}", rank=rank, world_size=size)
    groups = {"tutti": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    others = {name: peers.KNOWN[name](rank, size) for name in options.peers}
    if rank == 0:
        print(f"# {size} ranks, torch {torch.__version__}, median of {options.repeats} turns", flush=True)
    if not options.no_sizes:
        measure_sizes(rank, groups, others, options)
    if options.ddp:
        measure_ddp(rank, groups, options)
    dist.destroy_process_group()


def main() -> None:
    options = arguments()
    import peers

    for name in options.peers or ():
        if name not in peers.KNOWN:
            print(f"torch_perf.py: --peers {name}: must be of {', '.join(peers.KNOWN)}", file=sys.stderr)
            raise SystemExit(2)
    if options.no_sizes or options.op not in ("all_reduce", "all_gather"):
        options.peers = []
    elif options.peers is None:
        options.peers = peers.installed()
    peers.prepare(options.peers)
    context = multiprocessing.get_context("forkserver")  # made from a process without threads
    context.set_forkserver_preload(["torch"])
    for size in options.ranks:
        with tempfile.TemporaryDirectory() as scratch:
            ranks = [context.Process(target=run_rank, args=(r, size, f"{scratch}/store", options)) for r in range(size)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            if any(process.exitcode for process in ranks):
                raise SystemExit(f"ranks exited with {[process.exitcode for process in ranks]}")


if __name__ == "__main__":
    main()
