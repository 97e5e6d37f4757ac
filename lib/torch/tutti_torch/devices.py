"""Groups whose devices have several backends ("cpu:tutti,cuda:nccl"), and groups that torch checks.

A Tutti group is a ProcessGroup and also answers as its devices' backend: before 2.15 torch does not allow a
c10d::Backend written in Python, and from then on a call through one takes three to four times as long. So this does
what torch does for backends: pass tensors to their device's, and compare calls under TORCH_DISTRIBUTED_DEBUG=DETAIL.
"""
from __future__ import annotations

import functools
import os
import sys
import weakref
import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from . import library
from .errors import TuttiError
from .forms import sort_arguments
from .places import in_torch_terms

# The methods that c10d calls, and which argument's tensors must be alike on all ranks (None: they may differ).
_COMPARED = {
    **dict.fromkeys(("allreduce", "allreduce_coalesced", "broadcast", "reduce", "scatter", "reduce_scatter"), 0),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_single"), 0),
    **dict.fromkeys(("allgather", "allgather_coalesced", "_allgather_base", "all_gather_single", "gather", "gather_single"), 1),
    **dict.fromkeys(("alltoall", "alltoall_base", "all_to_all_single", "barrier"), None),
}
_NOT_COMPARED = (
    *("all_gather_single_coalesced", "allgather_into_tensor_coalesced", "reduce_scatter_single_coalesced"),
    *("reduce_scatter_tensor_coalesced", "send", "recv", "recv_anysource"),
)
_TEXT_BYTES = 512


def devices_of_creation(backend: str) -> tuple[list[str], dict[str, Any]]:
    """For a creator that c10d calls: the types of device that get this backend, and the local variables of c10d's
    function, which passes creators too little."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back  # type: ignore[assignment]
    there = frame.f_locals if frame is not None else {}
    config = there.get("backend_config")
    names = config.get_device_backend_map() if config is not None else {"cpu": backend, "cuda": backend}
    return [device for device, name in names.items() if name == backend], there


def make_others(there: dict[str, Any], backend: str) -> dist.ProcessGroup | None:
    """A group with the backends of devices that are not Tutti's: those in torch's already, and new ones."""
    names = there["backend_config"].get_device_backend_map() if there else {}
    others = {device: name for device, name in names.items() if name != backend}
    if not others:
        return None
    group = there["pg"]
    ready = {device.type for device in group._device_types}
    missing = {device: name for device, name in others.items() if device not in ready}
    if not missing:
        return group
    made, _ = distributed_c10d._new_process_group_helper(
        there["group_size"],
        there["group_rank"],
        there["global_ranks_in_group"],
        ",".join(f"{device}:{name}" for device, name in missing.items()),
        there["store"],
        f"{there['group_name']}/beside {backend}",
        there["backend_options"],
        there["timeout"],
    )
    _forget(made)
    for device in map(torch.device, ready):
        kind = dist.Backend.backend_type_map[others[device.type]]
        made._register_backend(device, kind, group._get_backend(device))
    return made


def _forget(group: dist.ProcessGroup) -> None:
    """Removes the group from torch's tables: it is part of another group, not one of the user's."""
    world = distributed_c10d._world
    tag = world.pg_to_tag.pop(group, None)
    for known in {tag, ""}:
        if group in world.tags_to_pg.get(known, []):
            world.tags_to_pg[known].remove(group)
    for table in (world.pg_map, world.pg_backend_config):
        table.pop(group, None)
    distributed_c10d._unregister_process_group(world.pg_names.pop(group))


def _first_tensor(arguments: Any) -> torch.Tensor | None:
    for argument in arguments:
        found = argument
        while isinstance(found, (list, tuple)) and found:
            found = found[0]
        if isinstance(found, torch.Tensor):
            return found
    return None


class Backend(c10d.Backend):
    """A group as a backend within torch's own ProcessGroup (torch 2.15 and later), with torch's hooks on each call."""

    def __init__(self, group: Any) -> None:
        super().__init__(group._rank, group._size)
        self._group = weakref.ref(group)

    def getBackendName(self) -> str:  # noqa: N802
        return "tutti"


def register_backend(group: Any) -> None:
    """Registers a Backend with the group's part in torch, for callers in C++."""
    try:
        backend = group._backend = Backend(group)
    except TypeError:
        return  # an older torch, which allows none in Python
    for device in group._devices:
        dist.ProcessGroup._register_backend(group, torch.device(device), dist.ProcessGroup.BackendType.CUSTOM, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)


def is_recorded(group: Any) -> bool:
    """Whether torch's flight recorder, or another of its hooks, is enabled and runs for backends such as these."""
    sizes = [os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")]
    asked = next((size for size in sizes if size), "0") != "0" or os.environ.get("TORCH_DIST_NAN_CHECK") == "1"
    return asked and hasattr(group, "_backend")


class Sorting:
    """Before a group's class: a call goes to the backend of its tensors' device, with TORCH_DISTRIBUTED_DEBUG=DETAIL
    only once all ranks have said that they make the same call, and through c10d where its hooks must see it."""

    def _sort(self: Any, name: str, ours: Any, arguments: Any) -> Any:
        tensor = _first_tensor(arguments)
        if tensor is not None and tensor.device.type not in self._devices:
            self._get_backend(tensor.device)  # raises if it has no backend
            # The group's method: torch's backends do not have all of them in Python.
            return getattr(self._others, name)
        if self._compares and name in _COMPARED:
            self._compare(name, arguments)
        return functools.partial(getattr(dist.ProcessGroup, name), self) if self._records else ours

    def _start_coalescing(self: Any, device: torch.device) -> None:
        """batch_isend_irecv calls it where a device's backend can coalesce (NCCL)."""
        group: Any = super() if self._others is None or device.type in self._devices else self._others
        group._start_coalescing(device)

    def _end_coalescing(self: Any, device: torch.device) -> Any:
        group: Any = super() if self._others is None or device.type in self._devices else self._others
        return group._end_coalescing(device)

    def _compare(self: Any, name: str, arguments: Any) -> None:
        which = _COMPARED[name]
        tensors = arguments[which] if which is not None else []
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        text = name + " of " * bool(tensors) + ", ".join(map(in_torch_terms, tensors))
        said = zlib.crc32(text.encode()).to_bytes(4, "little") + text.encode()[: _TEXT_BYTES - 4]
        mine = torch.frombuffer(bytearray(said.ljust(_TEXT_BYTES, b"\0")), dtype=torch.uint8)
        everyone = mine.new_empty((self._size, _TEXT_BYTES))
        self._all_gather_now(everyone, mine)
        if bool((everyone == mine).all()):
            return
        calls = [bytes(row.tolist())[4:].rstrip(b"\0").decode(errors="replace") for row in everyone]
        raise TuttiError(
            "mismatch between the ranks' calls: " + "; ".join(f"rank {rank}: {call}" for rank, call in enumerate(calls)),
            library.INVALID_USAGE,
        )


def _sorted(name: str) -> Any:
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        sorted_ = sort_arguments(arguments, options)[0] if options else arguments
        return self._sort(name, getattr(super(Sorting, self), name), sorted_)(*arguments, **options)

    # By this name torch recognises that it was called from here, and does not call here again.
    call.__code__ = call.__code__.replace(co_name=name)
    return call


def _passed(name: str) -> Any:
    def call(self: Backend, *arguments: Any) -> Any:
        group = self._group()
        return getattr(super(Sorting, group) if isinstance(group, Sorting) else group, name)(*arguments)

    return call


for _name in [*_COMPARED, *_NOT_COMPARED]:
    setattr(Sorting, _name, _sorted(_name))
    setattr(Backend, _name, _passed(_name))
