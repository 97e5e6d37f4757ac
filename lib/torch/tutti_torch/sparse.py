"""Sums of sparse tensors: each rank gathers all indices and values and adds them up."""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from . import library
from .errors import TuttiError
from .tensors import blocks

if TYPE_CHECKING:
    from .reductions import Reductions

_OPS = (int(dist.ReduceOp.SUM), int(dist.ReduceOp.AVG))


def _gather_rows(group: Reductions, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """The rows of all ranks, in the order of ranks; rank r has counts[r] of them."""
    everyone = rows.new_empty((sum(counts), *rows.shape[1:]))
    where = blocks(everyone.split(counts))
    code = library.load().tuttiAllGatherv(rows.data_ptr(), *where, group._communicator.handle, None)
    group._communicator.check(code)
    return everyone


def all_reduce(group: Reductions, tensor: torch.Tensor, number: int) -> torch.Tensor:
    """Blocks until done. All ranks get the same coalesced tensor."""
    if tensor.layout is not torch.sparse_coo or number not in _OPS or tensor.device.type != "cpu":
        raise TuttiError(
            f"all_reduce of a tensor with layout {tensor.layout} on {tensor.device}: only SUM and AVG of "
            "torch.sparse_coo tensors in host memory are supported; pass tensor.to_dense()"
        )
    mine = tensor.detach().coalesce()
    # The number of this rank's entries, and what all ranks have to agree on.
    header = torch.tensor([mine._nnz(), mine.sparse_dim(), *mine.shape], dtype=torch.int64)
    headers = header.new_empty((group._size, header.numel()))
    group._all_gather_now(headers, header)
    if not bool((headers[:, 1:] == header[1:]).all()):
        raise TuttiError(f"all_reduce of sparse tensors of different shapes: {headers[:, 2:].tolist()}", library.INVALID_USAGE)
    counts = headers[:, 0].tolist()
    indices = _gather_rows(group, mine.indices().t().contiguous(), counts)
    values = _gather_rows(group, mine.values().contiguous(), counts)
    if number == int(dist.ReduceOp.AVG):
        values = values / group._size
    return torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce()
