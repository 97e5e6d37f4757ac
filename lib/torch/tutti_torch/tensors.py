"""Tensors as Tutti's buffers: which type they are, how they lie in memory, which reduction is meant."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from . import library
from .errors import TuttiError

TYPES: dict[torch.dtype, int] = {getattr(torch, name): code for name, code in library.TYPES.items()}
# Types that Tutti does not add up, each with a type that holds all its values and gives the same bits.
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32}
_Op = dist.ReduceOp
# By number: looking up an enumerator itself costs a microsecond.
_OPS: dict[int, int] = {
    int(_Op.SUM): library.SUM, int(_Op.PRODUCT): library.PROD, int(_Op.MAX): library.MAX, int(_Op.MIN): library.MIN,
    int(_Op.AVG): library.AVG,
}
# The same by the hash of c10d's ReduceOp, which is its number and takes a tenth of the time to get. Empty if it is not.
_KINDS = {number: _Op(_Op.RedOpType(number)) for number in _OPS}
OPERATORS = _OPS if all(hash(op) == number for number, op in _KINDS.items()) else {}
# By their names in torch's functional collectives.
OPS = {name: getattr(_Op, name.upper()) for name in ("sum", "product", "max", "min", "avg", "band", "bor", "bxor")}
# For booleans, as the bytes 0 and 1.
_BOOL_OPS: dict[int, int] = {
    **dict.fromkeys(map(int, (_Op.SUM, _Op.MAX, _Op.BOR)), library.MAX),
    **dict.fromkeys(map(int, (_Op.PRODUCT, _Op.MIN, _Op.BAND)), library.MIN),
}
BITWISE: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    int(_Op.BAND): torch.Tensor.bitwise_and_,
    int(_Op.BOR): torch.Tensor.bitwise_or_,
    int(_Op.BXOR): torch.Tensor.bitwise_xor_,
}
SUM, AVG, PREMUL_SUM = int(_Op.SUM), int(_Op.AVG), int(_Op.PREMUL_SUM)


def is_gathered(number: int, dtype: torch.dtype) -> bool:
    """Whether ranks gather all inputs and combine them: bitwise reductions, which Tutti does not have."""
    return number in BITWISE and not (dtype is torch.bool and number in _BOOL_OPS)


def check_dense(tensor: torch.Tensor) -> None:
    """Only dense tensors in host memory, or on a CUDA device, can be sent."""
    if not isinstance(tensor, torch.Tensor):
        raise TuttiError(f"{type(tensor).__name__} where a tensor was expected")
    if tensor.device.type not in ("cpu", "cuda"):
        raise TuttiError(
            f"a tensor of shape {tuple(tensor.shape)} on {tensor.device}: Tutti works on host memory and CUDA devices; "
            "pass tensor.cpu()"
        )
    if tensor.layout is not torch.strided:
        raise TuttiError(
            f"a tensor with layout {tensor.layout}: only all_reduce with SUM or AVG takes sparse tensors; "
            "pass tensor.to_dense()"
        )


def waited(tensor: torch.Tensor) -> torch.Tensor:
    """What is in a result of torch's functional collectives (AsyncCollectiveTensor), which has no memory of its own, once
    it is there; any other tensor as it is."""
    wait = getattr(tensor, "trigger_wait", None)
    return tensor if wait is None else wait()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements are contiguous and aligned to their type (other libraries' memory may not be)."""
    is_as_it_lies = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
    return is_as_it_lies and tensor.data_ptr() % tensor.itemsize == 0


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or a copy that is plain."""
    check_dense(tensor)
    tensor = waited(tensor)
    return tensor if _is_plain(tensor) else tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format)


def unit(dtype: torch.dtype) -> tuple[int, int]:
    """The type in which elements of dtype are sent, and how many make one. Types unknown to Tutti are sent as bytes."""
    code = TYPES.get(dtype)
    return (code, 1) if code is not None else (library.UINT8, dtype.itemsize)


def amount(tensor: torch.Tensor) -> tuple[int, int]:
    """How much an operation sends of the tensor: how many elements of which type."""
    code, factor = unit(tensor.dtype)
    return tensor.numel() * factor, code


def op_number(op: Any) -> int:
    """The number of a ReduceOp or of one of its enumerators."""
    return int(getattr(op, "op", op))


def write(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Copies into the tensor on any thread: torch's inference mode is per thread, and only a thread in it may write to
    tensors that were created in it."""
    with torch.inference_mode() if tensor.is_inference() else contextlib.nullcontext():
        tensor.detach().copy_(source)


def no_reduction(number: int, dtype: torch.dtype) -> TuttiError:
    names = [name for name, op in dist.ReduceOp.RedOpType.__members__.items() if int(op) == number]
    return TuttiError(f"{(names or [number])[0]} of {dtype}: no such reduction is supported; convert the tensor")


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """In which values are added up: small floats are rounded once, in the end, and sums of integers do not wrap that do not
    in dense tensors."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else _WIDER.get(dtype, dtype)


class Reduction(NamedTuple):
    """How a tensor is reduced: the buffer that Tutti works on, and the type, number and operator of its elements."""

    buffer: torch.Tensor
    type_code: int
    op: int
    elems: int

    def write_back(self, tensor: torch.Tensor) -> None:
        """Copies the result from the buffer into the tensor, unless the buffer is the tensor's own memory."""
        if self.buffer.data_ptr() == tensor.data_ptr():
            return
        write(tensor, torch.view_as_complex(self.buffer) if tensor.is_complex() else self.buffer)


def reduction(tensor: torch.Tensor, number: int) -> Reduction:
    """How to reduce `tensor` with the operator of that number (not a bitwise one of integers). PREMUL_SUM's own operator
    takes the place of the sum's."""
    tensor = waited(tensor)
    if number == PREMUL_SUM:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            raise TuttiError(
                f"PREMUL_SUM of {tensor.dtype}: the factor is a fraction, so only floating-point and complex tensors can be "
                "scaled; convert the tensor, or multiply it and use SUM"
            )
        number = SUM
    if (tensor.is_cpu or tensor.is_cuda) and tensor.is_contiguous() and not tensor.is_neg():
        code, op = TYPES.get(tensor.dtype), _OPS.get(number)
        if code is not None and op is not None:
            return Reduction(tensor, code, op, tensor.numel())
    check_dense(tensor)
    buffer, op = tensor.detach().resolve_neg(), _OPS.get(number)
    if buffer.dtype is torch.bool:
        buffer, op = buffer.contiguous().view(torch.uint8), _BOOL_OPS.get(number)
    elif buffer.is_complex():
        if number not in (SUM, int(dist.ReduceOp.AVG)):
            op = None
        buffer = torch.view_as_real(buffer.resolve_conj().contiguous())
    elif buffer.dtype in _WIDER:
        buffer = buffer.to(_WIDER[buffer.dtype])
    code = TYPES.get(buffer.dtype)
    if op is None or code is None:
        raise no_reduction(number, tensor.dtype)
    buffer = buffer.contiguous()
    return Reduction(buffer, code, op, buffer.numel())


def blocks(tensors: Sequence[torch.Tensor]) -> tuple[int, Any, Any, int]:
    """For the functions that take a count and a displacement for each rank: an address, counts, displacements from it,
    and the type. The tensors, at least one, are of one type, and each is contiguous, wherever they lie."""
    code, factor = unit(tensors[0].dtype)
    size = tensors[0].dtype.itemsize // factor
    where = [tensor.data_ptr() for tensor in tensors]
    base = min((at for at, tensor in zip(where, tensors) if tensor.numel()), default=0)
    counts = [tensor.numel() * factor for tensor in tensors]
    displacements = [(at - base) // size if count else 0 for at, count in zip(where, counts)]
    return base, library.sizes(counts), library.sizes(displacements), code


def in_a_row(tensors: Sequence[torch.Tensor]) -> tuple[int | None, list[torch.Tensor]]:
    """Where tensors of one size and type lie one after the other, and each one's part: the tensors themselves if they do
    lie so, else parts of new memory."""
    if not tensors:
        return None, []
    first = tensors[0]
    if all(_is_plain(each) and each.data_ptr() == first.data_ptr() + i * first.nbytes for i, each in enumerate(tensors)):
        return first.data_ptr(), list(tensors)
    row = torch.empty((len(tensors), first.numel()), dtype=first.dtype, device=first.device)
    return row.data_ptr(), [part.view(each.shape) for part, each in zip(row, tensors)]


def stage(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Callable[[], None]]:
    """Buffers to receive into in place of `tensors`, and a function that then copies their contents there."""
    for tensor in tensors:
        check_dense(tensor)
    tensors = [waited(tensor) for tensor in tensors]
    buffers = [
        tensor if _is_plain(tensor) else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor in tensors
    ]
    copies = [(t, b) for t, b in zip(tensors, buffers) if t is not b]

    def finish() -> None:
        for tensor, buffer in copies:
            write(tensor, buffer)

    return buffers, finish
