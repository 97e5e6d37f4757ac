"""A communication hook of DDP for slow networks: gradients travel as one byte each (tuttiAllReduceQuantized)."""
# No annotations from __future__: DDP inspects the hook's.
from typing import Any

import torch
import torch.distributed as dist

from . import library
from .errors import TuttiError
from .process_group import TuttiProcessGroup
from .reductions import AVERAGE

_WIRES = {"int8": library.INT8, "e4m3": library.FLOAT8E4M3}


class QuantizedState:
    """How quantized_hook sends: in which group, as "int8" or "e4m3", in blocks of 64, 128, 192 or 256 elements behind a
    scale. With error_feedback what this loses of the rank's gradients is added to its next ones; it keeps a float for
    each."""

    def __init__(
        self, group: dist.ProcessGroup | None = None, wire: str = "int8", block_elems: int = 128,
        error_feedback: bool = False
    ) -> None:
        if wire not in _WIRES:
            raise TuttiError(f"quantized_hook: wire={wire!r} is none of {', '.join(_WIRES)}")
        where: Any = dist.group.WORLD if group is None else group
        if not isinstance(where, TuttiProcessGroup):
            raise TuttiError(f"quantized_hook: the process group is {type(where).__name__}, not Tutti's")
        self.group, self.wire, self.block_elems, self.error_feedback = where, wire, block_elems, error_feedback
        # By bucket, with its parameters' addresses: DDP makes other buckets after the first step.
        self._errors: dict[int, tuple[list[int], torch.Tensor]] = {}

    def _errors_of(self, bucket: dist.GradBucket) -> torch.Tensor:
        where = [parameter.data_ptr() for parameter in bucket.parameters()]
        if bucket.index() not in self._errors or self._errors[bucket.index()][0] != where:
            self._errors[bucket.index()] = where, torch.zeros_like(bucket.buffer())
        return self._errors[bucket.index()][1]

    def average(self, bucket: dist.GradBucket) -> dist.Work:
        """Averages over all ranks, in place and asynchronously."""
        buffer = bucket.buffer()
        group, lane = self.group, self.group._lanes.of(buffer)
        if buffer.dtype is not torch.float32:
            return group.allreduce([buffer], AVERAGE)
        errors = self._errors_of(bucket) if self.error_feedback else None
        at, errors_at = buffer.data_ptr(), None if errors is None else errors.data_ptr()
        what = (at, at, buffer.numel(), library.FLOAT32, library.AVG)
        how = (_WIRES[self.wire], self.block_elems, errors_at)
        issue = lane.calls((group._api.tuttiAllReduceQuantized, *what, *how))
        return lane.launch("all_reduce_quantized", [buffer], True, issue, [buffer], None, (buffer, errors))


def quantized_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For DistributedDataParallel.register_comm_hook(state, quantized_hook), where `state` is a QuantizedState, or a
    Tutti group or None (the world) for int8. The average of 32-bit gradients has the error that tutti.h states, and the
    same bits on all ranks; other types are averaged as they are."""
    how = state if isinstance(state, QuantizedState) else QuantizedState(state)
    return how.average(bucket).get_future().then(lambda done: done.value()[0])
