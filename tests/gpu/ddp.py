"""PyTorch's DistributedDataParallel on a GPU: two ranks on it learn what one rank learns from the same data. Over torch's
NCCL backend with libnccl.so.2 in LD_PRELOAD, or over tutti_torch (PYTHONPATH=lib/torch, TUTTI_LIBRARY).
ddp.py [--backend nccl|tutti] [--ranks N]; skipped (77) where torch or a GPU is missing."""
import argparse
import ctypes
import faulthandler
import os
import sys
import threading

RANKS, STEPS, BATCH, WIDTH = 2, 20, 64, 256
HOST_SECONDS = 20  # longer than the host needs for a few calls, whatever else it does


def losses(rank, n_ranks):
    """The mean loss of each step, over all ranks' shares of the batch."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)).double().cuda()
    inputs, wanted = torch.randn(BATCH, WIDTH).double().cuda(), torch.randn(BATCH, 1).double().cuda()
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if n_ranks > 1 else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    mine = slice(rank * BATCH // n_ranks, (rank + 1) * BATCH // n_ranks)
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(wrapped(inputs[mine]), wanted[mine])
        loss.backward()
        optimizer.step()
        shared = loss.detach().clone()
        if n_ranks > 1:
            dist.all_reduce(shared, op=dist.ReduceOp.AVG)
        seen.append(shared.item())
    return seen


class Gate:
    """Blocks the current stream until it is opened, however long that takes."""

    def __init__(self):
        import torch

        self.word = torch.zeros(1, dtype=torch.int32).pin_memory()  # written by the host, read by a stream

    def close(self):
        import torch

        self.word[0] = 0
        code = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2(
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), ctypes.c_uint64(self.word.data_ptr()),
            ctypes.c_uint32(1), ctypes.c_uint(1))  # CU_STREAM_WAIT_VALUE_EQ
        if code != 0:
            sys.exit(f"cuStreamWaitValue32: CUDA driver error {code}")

    def open(self):
        self.word[0] = 1

    def open_late(self):
        faulthandler.dump_traceback()
        self.open()


def check_streams(rank, n_ranks):
    """An asynchronous operation waits for the current stream, and the current stream, not the host, for it."""
    import torch
    import torch.distributed as dist

    total, gate = n_ranks * (n_ranks + 1) / 2, Gate()
    for size in (3, 1_000_000):
        tensor = torch.zeros(size, device="cuda")
        # The first turn is for calls that wait for the device: the driver loads a kernel at its first launch.
        for waits in (False, True):
            if waits:
                gate.close()
            late = threading.Timer(HOST_SECONDS, gate.open_late)
            late.start()
            tensor.fill_(rank + 1.0)
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
            doubled = 2 * tensor
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
            if waits and gate.word[0]:
                sys.exit(f"rank {rank}: the host has waited for an operation")
            late.cancel()
            gate.open()
            if not bool((doubled == 2 * total).all()) or not bool((tensor == total).all()) or not work.is_completed():
                sys.exit(f"rank {rank}: {doubled}, {tensor}; the sum is {total}")
        matrix = torch.arange(12.0, device="cuda").view(3, 4).t()
        dist.all_reduce(matrix, async_op=True).wait()
        if not torch.equal(matrix, n_ranks * torch.arange(12.0, device="cuda").view(3, 4).t()):
            sys.exit(f"rank {rank}: {matrix}")


def run(rank, n_ranks, port, backend):
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(0)
    alone = losses(0, 1)
    if backend == "tutti":
        import tutti_torch  # noqa: F401
    dist.init_process_group(backend, rank=rank, world_size=n_ranks)
    if backend == "tutti":
        check_streams(rank, n_ranks)
    together = losses(rank, n_ranks)
    dist.destroy_process_group()
    worst = max(abs(a - b) / abs(a) for a, b in zip(alone, together))
    if rank == 0:
        print(f"{n_ranks} ranks on one GPU, {STEPS} steps: loss {alone[0]:.6f} to {alone[-1]:.6f}, "
              f"at most {worst:.1e} from one rank's")
    if not (worst < 1e-9 and alone[-1] < alone[0]):
        sys.exit(f"rank {rank}: {together} is not {alone}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--backend", choices=("nccl", "tutti"), default="nccl")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    if not torch.cuda.is_available() or (options.backend == "nccl" and not torch.distributed.is_nccl_available()):
        print(f"skipped: torch {torch.__version__} sees no GPU, or has no NCCL")
        sys.exit(77)
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if options.backend == "nccl":
        print("NCCL", ".".join(map(str, torch.cuda.nccl.version())))
    torch.multiprocessing.spawn(run, args=(options.ranks, port, options.backend), nprocs=options.ranks)


if __name__ == "__main__":
    main()
