"""A made-up torch.cuda of Tutti's streams and events: tensors in host memory pass for tensors on a device, and kernels are
callbacks, so the order in which things run is real."""
import contextlib
import ctypes
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves
from tutti_torch import calls, lanes, library

DEVICE = torch.device("cuda", 0)


class Calls:
    """libtutti's functions for streams and events."""

    def __init__(self):
        self.api = ctypes.CDLL(library.load()._name)

    def make(self, name):
        handle = ctypes.c_void_p()
        assert getattr(self.api, name)(ctypes.byref(handle)) == 0
        return handle

    def __getattr__(self, name):
        def call(*handles):
            code = getattr(self.api, name)(*handles)
            assert code in (library.SUCCESS, library.IN_PROGRESS), f"{name} gave {code}"
            return code

        return call


class FakeCuda:
    """The parts of torch.cuda that lanes.py uses."""

    def __init__(self):
        calls = Calls()

        class Event:
            def __init__(self):
                self.handle = calls.make("tuttiEventCreate")

            def record(self, stream):
                calls.tuttiEventRecord(self.handle, stream.handle)

            def query(self):
                return calls.tuttiEventQuery(self.handle) == library.SUCCESS

        class Stream:
            def __init__(self, device=None):
                self.handle = calls.make("tuttiStreamCreate")
                self.cuda_stream = self.handle.value
                self.callbacks = []

            def wait_event(self, event):
                calls.tuttiStreamWaitEvent(self.handle, event.handle)

            def wait_stream(self, other):
                event = Event()
                event.record(other)
                self.wait_event(event)

            def synchronize(self):
                calls.tuttiStreamSynchronize(self.handle)

            def kernel(self, body):
                """Queues body() in the stream."""
                self.callbacks.append(library.STREAM_CALLBACK(lambda *_: body()))
                calls.tuttiStreamAddCallback(self.handle, self.callbacks[-1], None)

        self.Event, self.Stream = Event, Stream
        self.now = Stream()

    def current_stream(self, device=None):
        return self.now

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before

    def is_current_stream_capturing(self):
        return False


@contextlib.contextmanager
def made_up_gpu():
    """Tensors count as the device's; its communicator is one on host memory, whose operations run in Tutti's streams."""
    cuda, host_config = FakeCuda(), library.config
    future, hold, memory = torch.futures.Future, lanes.CudaLane._hold, []

    def hold_storages(lane, work, used):
        """torch gives a device's freed memory away in the order of its streams, a host's at once."""
        memory.extend(each.untyped_storage() for each in tree_leaves(used) if isinstance(each, torch.Tensor))
        hold(lane, work, used)

    with contextlib.ExitStack() as patches:
        for name in ("Event", "Stream", "current_stream", "stream", "is_current_stream_capturing"):
            patches.enter_context(mock.patch.object(torch.cuda, name, getattr(cuda, name)))
        for owner, name, new in (
            (lanes.Lanes, "of", lambda self, *tensors: self._on(DEVICE)),
            (lanes.CudaLane, "_hold", hold_storages),
            (calls, "short", calls._Absent),  # it is for host memory only
            (library, "config", lambda init_s, op_s, deterministic=False, device=None: host_config(init_s, op_s, deterministic)),
            (torch.futures, "Future", lambda devices: future()),
        ):
            patches.enter_context(mock.patch.object(owner, name, new))
        yield cuda
