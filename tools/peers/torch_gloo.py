"""PyTorch's all_reduce over its gloo, under the driver of bench.h.

torch_gloo.py DRIVER ARGUMENT...: the library made of torch.cpp, and what every program here takes
"""
import ctypes
import os
import sys

import torch
import torch.distributed as dist

BEGIN = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int)
BARRIER = ctypes.CFUNCTYPE(None)
ALL_REDUCE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

tensors = {}


class Calls(ctypes.Structure):
    _fields_ = [("begin", BEGIN), ("barrier", BARRIER), ("all_reduce", ALL_REDUCE)]


def tensor(address, elems):
    if (address, elems) not in tensors:
        tensors[address, elems] = torch.frombuffer((ctypes.c_float * elems).from_address(address), dtype=torch.float32)
    return tensors[address, elems]


def or_end(call):
    """An exception would be lost on its way through C."""
    def guarded(*arguments):
        try:
            call(*arguments)
        except BaseException as error:
            print(f"torch: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return guarded


def begin(rank, n_ranks):
    store = dist.FileStore(sys.argv[sys.argv.index("--meet") + 1] + ".torch", n_ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n_ranks)


def all_reduce(source, target, elems):
    out = tensor(target, elems)
    out.copy_(tensor(source, elems))
    dist.all_reduce(out)


def main():
    torch.set_num_threads(1)
    words = [word.encode() for word in sys.argv[1:]]
    calls = Calls(BEGIN(or_end(begin)), BARRIER(or_end(dist.barrier)), ALL_REDUCE(or_end(all_reduce)))
    driver = ctypes.CDLL(sys.argv[1])
    sys.exit(driver.bench_main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None), ctypes.byref(calls)))


if __name__ == "__main__":
    main()
