"""Operations that only move data: broadcast, gather, scatter, all-gather, all-to-all, barrier."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from . import calls
from .errors import TuttiError
from .forms import in_all_forms
from .group_base import GroupBase, one
from .tensors import amount, blocks, check_dense, in_a_row, plain, stage, waited, write
from .work import NO_TIMEOUT, TuttiWork


class Exchanges(GroupBase):
    def broadcast(
        self, tensors: Any = None, opts: Any = None, timeout: Any = None, *, tensor: Any = None, root: Any = None
    ) -> TuttiWork:
        done = calls.short.broadcast(self, tensors, opts)
        return self._broadcast(tensors, tensor, opts, root, timeout) if done is None else done

    @in_all_forms(c10d.BroadcastOptions)
    def _broadcast(self, tensors: list[torch.Tensor], opts: Any) -> TuttiWork:
        tensor, root = one(tensors, "broadcast"), opts.rootRank
        lane = self._lanes.of(tensor)
        sends = root == self._rank
        buffers, finish = ([plain(tensor)], None) if sends else stage([tensor])
        issue = lane.calls((self._api.tuttiBcast, buffers[0].data_ptr(), *amount(tensor), root))
        return lane.launch("broadcast", [tensor], opts.asyncOp, issue, [tensor], finish, buffers)

    # ---- all-gather ----

    @in_all_forms(c10d.AllgatherOptions)
    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> TuttiWork:
        return self._all_gather_lists([one(outputs, "all_gather")], [one(inputs, "all_gather")], opts)

    @in_all_forms(c10d.AllgatherOptions)
    def allgather_coalesced(
        self, output_lists: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> TuttiWork:
        """output_lists[r][i] is rank r's input i."""
        return self._all_gather_lists([list(outputs) for outputs in zip(*output_lists)], inputs, opts)

    def _all_gather_lists(
        self, output_lists: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> TuttiWork:
        """output_lists[i][r] is rank r's input i. Tensors of ranks may differ in size; each is received in place."""
        if len(output_lists) != len(inputs):
            raise TuttiError(f"all_gather: {len(output_lists)} outputs for {len(inputs)} inputs")
        for outputs, source in zip(output_lists, inputs):
            self._check_list("all_gather", outputs)
            mine = outputs[self._rank]
            if source.numel() != mine.numel() or source.dtype != mine.dtype:
                raise TuttiError(
                    f"all_gather: an input of {source.numel()} elements of {source.dtype}, but this rank's output "
                    f"has {mine.numel()} of {mine.dtype}"
                )
        sources = [plain(source) for source in inputs]
        results = [output for outputs in output_lists for output in outputs]
        buffers, finish = stage(results)
        lane = self._lanes.of(*inputs, *results)
        into = [blocks(buffers[i * self._size : (i + 1) * self._size]) for i in range(len(sources))]
        issue = lane.calls(*((self._api.tuttiAllGatherv, s.data_ptr(), *each) for s, each in zip(sources, into)))
        return lane.launch("all_gather", inputs, opts.asyncOp, issue, results, finish, (sources, buffers))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> TuttiWork:  # noqa: A002
        done = calls.short.all_gather(self, output, input, opts)
        return self._all_gather_singles([output], [input], opts) if done is None else done

    @in_all_forms(c10d.AllgatherOptions)
    def _all_gather_singles(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> TuttiWork:
        for output, source in zip(outputs, inputs):
            if output.numel() != source.numel() * self._size or output.dtype != source.dtype:
                raise TuttiError(
                    f"all_gather: {source.numel()} elements of {source.dtype} from each of {self._size} ranks do not "
                    f"make {output.numel()} of {output.dtype}"
                )
        sources = [plain(source) for source in inputs]
        buffers, finish = stage(list(outputs))
        lane = self._lanes.of(*inputs, *outputs)
        pairs = zip(sources, buffers)
        issue = lane.calls(*((self._api.tuttiAllGather, s.data_ptr(), to.data_ptr(), *amount(s)) for s, to in pairs))
        return lane.launch("all_gather_single", inputs, opts.asyncOp, issue, list(outputs), finish, (sources, buffers))

    # torch 2.13 has new names for these, and calls either.
    all_gather_single = _allgather_base
    allgather_into_tensor_coalesced = all_gather_single_coalesced = _all_gather_singles

    # ---- gather, scatter ----

    @in_all_forms(c10d.GatherOptions)
    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> TuttiWork:
        source, root = plain(one(inputs, "gather")), opts.rootRank
        targets = self._root_list("gather", outputs, source) if root == self._rank else []
        lane = self._lanes.of(source, *targets)
        to, parts = in_a_row(targets)
        issue = lane.calls((self._api.tuttiGather, source.data_ptr(), to, *amount(source), root))

        def finish() -> None:
            for target, part in zip(targets, parts):
                if part is not target:
                    write(target, part)

        return lane.launch("gather", [source], opts.asyncOp, issue, targets, finish, (source, parts))

    def gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any) -> TuttiWork:
        """Like gather, but into the ranks' equal parts of one tensor. torch calls it from 2.14 on."""
        if opts.rootRank != self._rank:
            return self.gather([], [source], opts)
        if output.numel() != source.numel() * self._size or not output.is_contiguous():
            raise TuttiError(
                f"gather_single: {source.numel()} elements from each of {self._size} ranks do not fit a tensor of shape "
                f"{tuple(output.shape)} and strides {output.stride()}: give a contiguous one of {self._size} times as many"
            )
        return self.gather([list(output.view(self._size, *source.shape))], [source], opts)

    @in_all_forms(c10d.ScatterOptions)
    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any) -> TuttiWork:
        target, root = one(outputs, "scatter"), opts.rootRank
        (buffer,), finish = stage([target])
        sources = self._root_list("scatter", inputs, target) if root == self._rank else []
        lane = self._lanes.of(target, *sources)
        at, parts = in_a_row(sources)
        for source, part in zip(sources, parts):
            if part is not source:
                write(part, source.detach())
        issue = lane.calls((self._api.tuttiScatter, at, buffer.data_ptr(), *amount(target), root))
        return lane.launch("scatter", sources or [target], opts.asyncOp, issue, [target], finish, (buffer, parts))

    def _root_list(self, what: str, lists: list[list[torch.Tensor]], tensor: torch.Tensor) -> list[torch.Tensor]:
        """The root's tensors, one for each rank, all of the size and type of `tensor`."""
        tensors = one(lists, what)
        self._check_list(what, tensors)
        for each in tensors:
            if each.numel() != tensor.numel() or each.dtype != tensor.dtype:
                raise TuttiError(
                    f"{what}: the list has a tensor of {each.numel()} elements of {each.dtype}, but this rank's tensor "
                    f"has {tensor.numel()} of {tensor.dtype}: all must be equal (all_to_all takes different sizes)"
                )
        return [waited(each) for each in tensors]

    # ---- all-to-all ----

    @in_all_forms(c10d.AllToAllOptions)
    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any) -> TuttiWork:
        self._check_list("all_to_all", outputs)
        self._check_list("all_to_all", inputs)
        sources = [plain(source) for source in inputs]
        buffers, finish = stage(outputs)
        return self._all_to_all(opts, buffers, sources, outputs, finish)

    @in_all_forms(c10d.AllToAllOptions, of_lists=False)
    def alltoall_base(
        self, output: torch.Tensor, source: torch.Tensor, output_splits: Sequence[int] = (),
        input_splits: Sequence[int] = (), *, opts: Any
    ) -> TuttiWork:
        buffers, finish = stage([output])
        into = self._split("output", buffers[0], output_splits)
        return self._all_to_all(opts, into, self._split("input", plain(source), input_splits), [output], finish)

    all_to_all_single = alltoall_base

    def _split(self, name: str, tensor: torch.Tensor, splits: Sequence[int]) -> list[torch.Tensor]:
        """The tensor's block for each rank: as many rows as `splits` says, or the same number for all."""
        rows = tensor.size(0) if tensor.dim() else 1
        splits = [int(each) for each in splits]  # of a NumPy array or a tensor, too
        if not splits:
            if rows % self._size:
                raise TuttiError(
                    f"all_to_all_single: the {name}'s {rows} rows cannot be split evenly among {self._size} ranks: "
                    f"give {name}_split_sizes"
                )
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows or min(splits) < 0:
            raise TuttiError(f"all_to_all_single: {name}_split_sizes={splits} for {rows} rows and {self._size} ranks")
        return list(tensor.detach().split(splits))

    def _all_to_all(
        self, opts: Any, buffers: list[torch.Tensor], sources: list[torch.Tensor], outputs: Any, finish: Any
    ) -> TuttiWork:
        if {t.dtype for t in [*buffers, *sources]} != {sources[0].dtype}:
            raise TuttiError("all_to_all: tensors of different types: all must have the same")
        lane = self._lanes.of(*sources, *buffers)
        *send, _ = blocks(sources)
        issue = lane.calls((self._api.tuttiAlltoAllv, *send, *blocks(buffers)))
        return lane.launch("all_to_all", sources, opts.asyncOp, issue, list(outputs), finish, (buffers, sources))

    def barrier(self, opts: Any = None, timeout: Any = None) -> TuttiWork:
        is_simple = getattr(opts, "asyncOp", True) is False and opts.timeout <= NO_TIMEOUT
        done = calls.short.barrier(self) if is_simple else None
        return self._barrier(opts, timeout) if done is None else done

    @in_all_forms(c10d.BarrierOptions)
    def _barrier(self, opts: Any) -> TuttiWork:
        lane = self._lanes.host
        is_async = opts.asyncOp or opts.timeout > NO_TIMEOUT
        work = lane.launch("barrier", [], is_async, lane.calls((self._api.tuttiBarrier,)), [])
        if not opts.asyncOp:
            work.wait(opts.timeout)
        return work

    def _check_list(self, what: str, tensors: Sequence[torch.Tensor]) -> None:
        if len(tensors) != self._size:
            raise TuttiError(f"{what}: {len(tensors)} tensors for {self._size} ranks")
        for tensor in tensors:
            check_dense(tensor)
