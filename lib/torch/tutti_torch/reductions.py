"""The operations that compute: all-reduce, reduce, reduce-scatter."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from . import calls, library
from .errors import TuttiError
from .forms import in_all_forms
from .group_base import GroupBase, Stream, one
from .tensors import AVG, BITWISE, PREMUL_SUM, SUM, Reduction
from .tensors import blocks, check_dense, is_gathered, no_reduction, op_number, plain, reduction, sum_type, waited, write
from .work import TuttiWork

AVERAGE = c10d.AllreduceOptions()
AVERAGE.reduceOp = dist.ReduceOp.AVG


class Reductions(GroupBase):
    @contextmanager
    def _operator(self, op: Any, number: int, plan: Reduction, comm: int) -> Iterator[int]:
        """The operator's number for Tutti; PREMUL_SUM has one only during the call."""
        if number != PREMUL_SUM:
            yield plan.op
            return
        factor = op.__getstate__()[1]
        if not isinstance(factor, torch.Tensor):
            factor = torch.tensor(factor, dtype=torch.float64)
        if factor.is_complex():
            raise TuttiError("PREMUL_SUM: the factor is complex; multiply the tensor, and use SUM")
        scalar = factor.to("cpu", plan.buffer.dtype).reshape(-1)
        if scalar.numel() != 1:
            raise TuttiError(f"PREMUL_SUM: the factor has {scalar.numel()} elements; it must have one")
        made = ctypes.c_int()
        where = library.SCALAR_HOST_IMMEDIATE
        self._communicator.check(
            self._api.tuttiRedOpCreatePreMulSum(ctypes.byref(made), scalar.data_ptr(), plan.type_code, where, comm)
        )
        try:
            yield made.value
        finally:
            self._api.tuttiRedOpDestroy(made.value, comm)

    def allreduce(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, op: Any = None
    ) -> dist.Work:
        done = calls.short.allreduce(self, tensors, opts)
        return self._all_reduce_one(tensors, tensor, opts, op, timeout) if done is None else done

    @in_all_forms(c10d.AllreduceOptions)
    def _all_reduce_one(self, tensors: list[torch.Tensor], opts: Any) -> TuttiWork:
        return self._all_reduce([one(tensors, "all_reduce")], opts.reduceOp, opts.asyncOp)

    @in_all_forms(c10d.AllreduceOptions)
    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any) -> TuttiWork:
        return self._all_reduce(tensors, opts.reduceOp, opts.asyncOp)

    def _all_reduce(self, tensors: list[torch.Tensor], op: Any, is_async: bool) -> TuttiWork:
        number = op_number(op)
        if any(tensor.layout is not torch.strided for tensor in tensors):
            return self._at_once([self._sum_sparse(tensor, number) for tensor in tensors], tensors)
        if is_gathered(number, tensors[0].dtype):
            return self._at_once([self._combine(tensor, number) for tensor in tensors], tensors)
        plans = [reduction(tensor, number) for tensor in tensors]
        lane = self._lanes.of(*tensors)

        def issue(comm: int, stream: Stream) -> None:
            for plan in plans:
                at = plan.buffer.data_ptr()
                with self._operator(op, number, plan, comm) as operator:
                    lane.check(self._api.tuttiAllReduce(at, at, plan.elems, plan.type_code, operator, comm, stream))

        def finish() -> None:
            for plan, tensor in zip(plans, tensors):
                plan.write_back(tensor)

        return lane.launch("all_reduce", tensors, is_async, issue, tensors, finish, plans)

    def _at_once(self, results: list[torch.Tensor], tensors: list[torch.Tensor]) -> TuttiWork:
        """Completes at once what takes several operations in a row, so that no later call comes between them."""
        for tensor, result in zip(tensors, results):
            if result is tensor:
                continue
            if tensor.layout is torch.strided:
                write(tensor, result)
            else:
                with torch.no_grad():  # a sparse tensor has no memory that detach() would share
                    tensor.copy_(result)
        return TuttiWork(tensors)

    def _combine(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """AND, OR and XOR of integers, which Tutti cannot do: each rank gathers and combines all inputs, piece by
        piece."""
        if tensor.is_floating_point() or tensor.is_complex():
            raise TuttiError(f"bitwise reduction of {tensor.dtype}: only integers are supported")
        result = plain(tensor).clone().view(-1)
        for piece in result.split(1 << 20):
            everyone = piece.new_empty((self._size, piece.numel()))
            self._all_gather_now(everyone, piece)
            piece.copy_(everyone[0])
            for other in everyone[1:]:
                BITWISE[number](piece, other)
        return result.view(tensor.shape)

    def _sum_sparse(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """Each rank gathers all indices and values and adds them up. Blocks until done. All ranks get the same,
        coalesced."""
        if tensor.layout is not torch.sparse_coo or number not in (SUM, AVG) or tensor.device.type != "cpu":
            raise TuttiError(
                f"all_reduce of a tensor with layout {tensor.layout} on {tensor.device}: only SUM and AVG of "
                "torch.sparse_coo tensors in host memory are supported; pass tensor.to_dense()"
            )
        if number == AVG and tensor.dtype is torch.bool:
            raise no_reduction(number, tensor.dtype)
        mine = tensor.detach().coalesce()
        # The number of this rank's entries, and what all ranks have to agree on.
        header = torch.tensor([mine._nnz(), mine.sparse_dim(), *mine.shape], dtype=torch.int64)
        headers = header.new_empty((self._size, header.numel()))
        self._all_gather_now(headers, header)
        if not bool((headers[:, 1:] == header[1:]).all()):
            shapes = headers[:, 2:].tolist()
            raise TuttiError(f"all_reduce of sparse tensors of different shapes: {shapes}", library.INVALID_USAGE)
        counts = headers[:, 0].tolist()
        indices = self._gather_rows(mine.indices().t().contiguous(), counts)
        values = self._gather_rows(mine.values().contiguous(), counts).to(sum_type(tensor.dtype))
        total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False).coalesce()
        if number == AVG:
            is_exact = values.is_floating_point() or values.is_complex()
            total = torch.div(total, self._size, rounding_mode=None if is_exact else "trunc")
        return total

    def _gather_rows(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """The rows of all ranks, in the order of ranks; rank r has counts[r] of them."""
        everyone = rows.new_empty((sum(counts), *rows.shape[1:]))
        where = blocks(everyone.split(counts))
        code = self._api.tuttiAllGatherv(rows.data_ptr(), *where, self._communicator.handle, None)
        self._communicator.check(code)
        return everyone

    def _all_gather_now(self, everyone: torch.Tensor, mine: torch.Tensor) -> None:
        """Synchronous, because the caller reads the result next."""
        size = mine.numel() * mine.element_size()
        lane = self._lanes.of(mine)
        issue = lane.calls((self._api.tuttiAllGather, mine.data_ptr(), everyone.data_ptr(), size, library.UINT8))
        lane.launch("all_gather", [mine], False, issue, [])

    def reduce(
        self, tensors: Any = None, opts: Any = None, op: Any = None, timeout: Any = None, *, tensor: Any = None,
        root: Any = None
    ) -> TuttiWork:
        done = calls.short.reduce(self, tensors, opts)
        return self._reduce(tensors, tensor, opts, root, op, timeout) if done is None else done

    @in_all_forms(c10d.ReduceOptions)
    def _reduce(self, tensors: list[torch.Tensor], opts: Any) -> TuttiWork:
        tensor, op, root = one(tensors, "reduce"), opts.reduceOp, opts.rootRank
        number = op_number(op)
        if is_gathered(number, tensor.dtype):
            result = self._combine(tensor, number)
            return self._at_once([result if root == self._rank else tensor], [tensor])
        plan = reduction(tensor, number)
        lane = self._lanes.of(tensor)

        def issue(comm: int, stream: Stream) -> None:
            at = plan.buffer.data_ptr()
            with self._operator(op, number, plan, comm) as operator:
                lane.check(self._api.tuttiReduce(at, at, plan.elems, plan.type_code, operator, root, comm, stream))

        def finish() -> None:
            if root == self._rank:
                plan.write_back(tensor)

        return lane.launch("reduce", tensors, opts.asyncOp, issue, tensors, finish, plan)

    # ---- reduce-scatter ----

    @in_all_forms(c10d.ReduceScatterOptions)
    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any
    ) -> TuttiWork:
        """Blocks may differ in size."""
        output, blocks = one(outputs, "reduce_scatter"), one(inputs, "reduce_scatter")
        if len(blocks) != self._size:
            raise TuttiError(f"reduce_scatter: {len(blocks)} inputs for {self._size} ranks")
        for block in blocks:
            check_dense(block)
        if blocks[self._rank].numel() != output.numel():
            raise TuttiError(
                f"reduce_scatter: the output has {output.numel()} elements, input {self._rank} has "
                f"{blocks[self._rank].numel()}"
            )
        flat = torch.cat([block.detach().reshape(-1) for block in blocks])
        return self._reduce_scatter([(output, flat, [block.numel() for block in blocks])], opts)

    def _reduce_scatter_base(
        self, outputTensor: torch.Tensor, inputTensor: torch.Tensor, opts: Any = None  # noqa: N803
    ) -> TuttiWork:
        done = calls.short.reduce_scatter(self, outputTensor, inputTensor, opts)
        return self._reduce_scatter_singles([outputTensor], [inputTensor], opts) if done is None else done

    @in_all_forms(c10d.ReduceScatterOptions)
    def _reduce_scatter_singles(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> TuttiWork:
        return self._reduce_scatter([(output, source, None) for output, source in zip(outputs, inputs)], opts)

    # torch 2.13 has new names for these, and calls either.
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced = _reduce_scatter_singles

    def _reduce_scatter(
        self, pairs: list[tuple[torch.Tensor, torch.Tensor, list[int] | None]], opts: Any
    ) -> TuttiWork:
        op, number = opts.reduceOp, op_number(opts.reduceOp)
        lane = self._lanes.of(*(tensor for output, source, _ in pairs for tensor in (output, source)))
        parts = []
        for output, source, counts in pairs:
            output = waited(output)
            if source.numel() != (sum(counts) if counts else output.numel() * self._size):
                raise TuttiError(
                    f"reduce_scatter: an input of {source.numel()} elements does not fit an output of "
                    f"{output.numel()} for {self._size} ranks"
                )
            if output.dtype != source.dtype:
                raise TuttiError(f"reduce_scatter from {source.dtype} to {output.dtype}: both must have the same type")
            if is_gathered(number, source.dtype):
                source = self._combine(source, number)
                offset = sum((counts or [output.numel()] * self._size)[: self._rank])
                self._at_once([source.view(-1)[offset : offset + output.numel()].view_as(output)], [output])
                continue
            plan = reduction(source, number)
            per_element = plan.elems // max(source.numel(), 1)
            # The result has the form of the buffer: a wider type, or two numbers for each complex one.
            direct = plan.buffer.dtype == output.dtype and output.is_contiguous() and not output.is_neg()
            into = output if direct else plan.buffer.new_empty(output.numel() * per_element)
            parts.append((plan, into, output, [count * per_element for count in counts] if counts else None))

        def issue(comm: int, stream: Stream) -> None:
            for plan, into, _, counts in parts:
                at, to = plan.buffer.data_ptr(), into.data_ptr()
                with self._operator(op, number, plan, comm) as operator:
                    if counts is None:
                        size = plan.elems // self._size
                        code = self._api.tuttiReduceScatter(at, to, size, plan.type_code, operator, comm, stream)
                    else:
                        sizes = library.sizes(counts)
                        code = self._api.tuttiReduceScatterv(at, to, sizes, plan.type_code, operator, comm, stream)
                    lane.check(code)

        def finish() -> None:
            for plan, into, output, _ in parts:
                if into is not output:
                    form = into.view(*output.shape, 2) if output.is_complex() else into.view(output.shape)
                    Reduction(form, plan.type_code, plan.op, into.numel()).write_back(output)

        outputs, inputs = [output for output, _, _ in pairs], [source for _, source, _ in pairs]
        return lane.launch("reduce_scatter", inputs, opts.asyncOp, issue, outputs, finish, (parts, pairs))
