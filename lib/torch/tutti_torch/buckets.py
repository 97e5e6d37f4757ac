"""DDP's buckets in memory that the other ranks of the machine can map, so that reducing them copies nothing."""
import ctypes
import logging
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import library
from .communicator import Communicator
from .errors import TuttiError
from .process_group import TuttiProcessGroup
from .reductions import AVERAGE

_log = logging.getLogger("tutti_torch")


class _Registered(NamedTuple):
    storage: torch.UntypedStorage
    handle: int  # 0 if the others cannot map it


class RegisteredBuckets:
    """The state of the hook: the buckets of one model, by their index. DDP makes new ones after the first step."""

    def __init__(self, group: TuttiProcessGroup) -> None:
        self._buckets: dict[int, _Registered] = {}
        self._group = group
        self._communicator: Communicator = group._communicator

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The hook: averages the bucket, whose memory is registered at first use."""
        if self._communicator is not self._group._communicator:  # reconfigured: the old one's registrations are gone
            self._communicator = self._group._communicator
            self._buckets.clear()
        buffer = bucket.buffer()
        known = self._buckets.get(bucket.index())
        if known is None or known.storage.data_ptr() != buffer.untyped_storage().data_ptr():
            self._forget(bucket.index())
            self._register(bucket.index(), buffer)
        if bucket.is_last():
            for index in [index for index in self._buckets if index > bucket.index()]:
                self._forget(index)
        return self._group.allreduce([buffer], AVERAGE).get_future().then(lambda done: done.value()[0])

    def _register(self, index: int, buffer: torch.Tensor) -> None:
        storage = buffer.untyped_storage()
        # A device's memory needs no registration.
        if storage.nbytes() == 0 or not buffer.is_cpu:
            return
        try:
            # Moves the bytes; all views of the bucket move with them.
            storage.share_memory_()
        except RuntimeError as error:
            _log.warning("a bucket of %d bytes stays in private memory: %s", storage.nbytes(), error)
            self._buckets[index] = _Registered(storage, 0)
            return
        handle = ctypes.c_void_p()
        self._communicator.check(
            library.load().tuttiCommRegister(
                self._communicator.handle, storage.data_ptr(), storage.nbytes(), ctypes.byref(handle)
            )
        )
        self._buckets[index] = _Registered(storage, handle.value or 0)

    def _forget(self, index: int) -> None:
        known = self._buckets.pop(index, None)
        if known is not None and known.handle != 0:
            library.load().tuttiCommDeregister(self._communicator.handle, known.handle)

    def __del__(self) -> None:
        try:
            for index in list(self._buckets):
                self._forget(index)
        except TuttiError:
            pass  # The group was destroyed first, and the registrations with it.


def use_registered_buckets(model: DistributedDataParallel) -> None:
    """From its next backward pass on, the buckets of `model` lie in shared memory that is registered with Tutti
    (tuttiCommRegister), so that ranks of one machine read each other's gradients in place. Call it once, before the
    first backward pass; it is installed as a communication hook. Gradients are averaged as without it. The memory comes
    from /dev/shm: if that is too small, a bucket stays where it is, with a warning."""
    group: Any = model.process_group
    if not isinstance(group, TuttiProcessGroup):
        raise TuttiError(f"the model's process group is {type(group).__name__}, not Tutti's")
    model.register_comm_hook(RegisteredBuckets(group), RegisteredBuckets.reduce)
