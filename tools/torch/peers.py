"""What torch_perf.py compares with besides torch's own backends: the all-reduces over shared memory that DeepSpeed and vLLM
have for inference on CPUs, where their packages are installed. Both know sums of the whole group only.

A peer is a dictionary of its operations: name -> function(output, input), both of a contiguous tensor."""
from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Operations = dict[str, Callable[[torch.Tensor, torch.Tensor], object]]


def deepspeed(rank: int, size: int) -> Operations:
    # It uses shared memory only if LOCAL_SIZE is the group's size, and names it after address and port.
    os.environ.update(LOCAL_SIZE=str(size), MASTER_ADDR="localhost", MASTER_PORT=str(os.getppid()))
    _deepspeed_extension().initialize(size, rank)
    # Below deepspeed.comm.inference_all_reduce, whose Python code takes longer than small sums.
    operation = torch.ops.deepspeed.inference_all_reduce_
    return {"all_reduce": lambda output, _: operation(output)}


def _deepspeed_extension() -> Any:
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.ops.op_builder import cpu

    return cpu.ShareMemCommBuilder().load(verbose=False)


def vllm(rank: int, size: int) -> Operations:
    """Only its kernels, called as vllm.distributed.device_communicators.cpu_communicator does."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations is not None
    kind = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
    torch.ops.load_library(Path(spec.submodule_search_locations[0]) / f"{kind}.abi3.so")
    name = [f"torch_perf_{os.getpid()}"]
    dist.broadcast_object_list(name)
    calls = torch.ops._C
    handle = calls.init_shm_manager(name[0], size, rank, torch.get_num_threads())
    dist.barrier()
    calls.join_shm_manager(handle, name[0])
    dist.barrier()
    return {
        "all_reduce": lambda output, _: calls.shm_allreduce(handle, output),
        "all_gather": lambda output, input_: calls.shm_all_gather(handle, input_, output),
    }


def prepare(names: list[str]) -> None:
    """Compiles what must be compiled (DeepSpeed's extension; needs ninja and a compiler) before there are ranks that wait."""
    if "deepspeed" in names:
        _deepspeed_extension()


KNOWN = {"deepspeed": deepspeed, "vllm": vllm}


def installed() -> list[str]:
    return [name for name in KNOWN if importlib.util.find_spec(name) is not None]
