"""The forms in which c10d's groups can be called: with lists of one tensor each and an object of options, or with the
tensors themselves and, in place of the options, a root, an operator and a time-out."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .work import NO_TIMEOUT

# The options that arguments of these types stand for.
_OPTIONS = {int: "rootRank", dist.ReduceOp: "reduceOp", timedelta: "timeout"}


def sort_arguments(arguments: Sequence[Any], named: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """What an operation works on, in the order of all its forms (outputs, inputs, their splits), and its options."""
    names = sorted(named, key=lambda name: ("split" in name, name.startswith("input")))
    operands, options = [], []
    for each in (*arguments, *(named[name] for name in names)):
        if isinstance(each, (list, torch.Tensor)):
            operands.append(each)
        elif each is not None:
            (options if isinstance(each, tuple(_OPTIONS)) or hasattr(each, "asyncOp") else operands).append(each)
    return operands, options


def in_all_forms(options: Callable[[], Any], of_lists: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An operation that has one form, f(self, tensors..., opts), then has all. `options` makes its default options;
    `of_lists`: its tensors come in lists."""

    def decorate(operation: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(operation)
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            operands, given = sort_arguments(arguments, named)
            opts = next((each for each in given if hasattr(each, "asyncOp")), None) or options()
            for each in given:
                if each is not opts:
                    setattr(opts, next(name for kind, name in _OPTIONS.items() if isinstance(each, kind)), each)
            if of_lists and any(isinstance(operand, torch.Tensor) for operand in operands):
                operands = [[operand] for operand in operands]
            work = operation(self, *operands, opts=opts)
            if opts.timeout > NO_TIMEOUT:
                work.limit = opts.timeout
            return work

        return call

    return decorate
