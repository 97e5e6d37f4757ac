"""Operations on CUDA devices and torch's streams, without a GPU: torch.cuda is made up of Tutti's streams and events, and
tensors in host memory pass for tensors on a device. Kernels are callbacks, so what runs before what is real."""
import contextlib
import ctypes
import threading
import unittest
import weakref
from unittest import mock

import prerequisites
import ranks

prerequisites.require()
import torch
import torch.distributed as dist
from tutti_torch import calls, lanes, library

DEVICE = torch.device("cuda", 0)


class Calls:
    """libtutti's functions on streams and events."""

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
    """What lanes.py uses of torch.cuda."""

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
                """body() runs in the stream's order."""
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
    """Tensors count as the device's; its communicator is one on host memory, whose operations take Tutti's streams."""
    cuda, host_config = FakeCuda(), library.config
    future = torch.futures.Future
    with contextlib.ExitStack() as patches:
        for name in ("Event", "Stream", "current_stream", "stream", "is_current_stream_capturing"):
            patches.enter_context(mock.patch.object(torch.cuda, name, getattr(cuda, name)))
        for owner, name, new in (
            (lanes.Lanes, "of", lambda self, *tensors: self._on(DEVICE)),
            (calls, "short", calls._Absent),  # it is for host memory
            (library, "config", lambda init_s, op_s, deterministic=False, device=None: host_config(init_s, op_s, deterministic)),
            (torch.futures, "Future", lambda devices: future()),
        ):
            patches.enter_context(mock.patch.object(owner, name, new))
        yield cuda


class CudaStreams(unittest.TestCase):
    @ranks.on(2)
    def test_order(self, rank, n):
        """The operation waits for what is in the current stream; what comes after wait() waits for the operation; the host
        waits for neither."""
        store = dist.distributed_c10d._get_default_store()
        with made_up_gpu() as cuda:
            gate, tensor, seen = threading.Event(), torch.zeros(1000), []
            cuda.now.kernel(lambda: (gate.wait(60), tensor.fill_(rank + 1)))
            work = dist.all_reduce(tensor, async_op=True)
            self.assertFalse(work.is_completed())
            self.assertTrue(work.wait())
            cuda.now.kernel(lambda: seen.append(tensor.clone()))
            dist.all_reduce(tensor)
            # Both ranks are here before either's first kernel goes on.
            store.set(f"through{rank}", "1")
            store.wait(["through0", "through1"])
            self.assertFalse(seen or work.is_completed())
            gate.set()
            cuda.now.synchronize()
            self.assertTrue(work.is_completed() and work.is_success())
            self.assertTrue(torch.equal(seen[0], torch.full((1000,), 3.0)))
            self.assertTrue(torch.equal(tensor, torch.full((1000,), 6.0)))
            self.assertTrue(torch.equal(work.get_future().value()[0], tensor))

    @ranks.on(2)
    def test_without_wait(self, rank, n):
        """Other streams run on beside an operation that nobody has waited for."""
        with made_up_gpu() as cuda:
            gate, ran = threading.Event(), threading.Event()
            blocker = cuda.Stream()
            with torch.cuda.stream(blocker):
                blocker.kernel(lambda: gate.wait(60))
                work = dist.all_reduce(torch.ones(3), async_op=True)
            cuda.now.kernel(ran.set)
            cuda.now.synchronize()
            self.assertTrue(ran.is_set())
            self.assertFalse(work.is_completed())
            gate.set()
            work.wait()
            cuda.now.synchronize()
            self.assertTrue(work.is_completed())

    @ranks.on(2)
    def test_memory(self, rank, n):
        """What an operation uses lives until it is done, even if its caller lets go of everything."""
        with made_up_gpu() as cuda:
            gate, tensor = threading.Event(), torch.ones(1000)
            gone = weakref.ref(tensor)
            cuda.now.kernel(lambda: gate.wait(60))
            dist.all_reduce(tensor, async_op=True)
            del tensor
            self.assertIsNotNone(gone())
            gate.set()
            work = dist.all_reduce(torch.ones(3), async_op=True)
            work.wait()
            cuda.now.synchronize()
            dist.all_reduce(torch.ones(3), async_op=True).wait()
            cuda.now.synchronize()
            self.assertIsNone(gone())

    @ranks.on(3)
    def test_collectives(self, rank, n):
        with made_up_gpu() as cuda:
            everyone = [torch.zeros(5) for _ in range(n)]
            works = [dist.all_gather(everyone, torch.full((5,), float(rank)), async_op=True)]
            part, flat = torch.zeros(4), torch.arange(4.0 * n)
            works.append(dist.reduce_scatter_tensor(part, flat, async_op=True))
            given = torch.full((7,), float(rank))
            works.append(dist.broadcast(given, 1, async_op=True))
            swapped = torch.zeros(n)
            works.append(dist.all_to_all_single(swapped, torch.full((n,), float(rank)), async_op=True))
            for work in works:
                work.wait()
            cuda.now.synchronize()
            for peer in range(n):
                self.assertTrue(bool((everyone[peer] == peer).all()))
            self.assertTrue(torch.equal(part, n * flat[4 * rank : 4 * rank + 4]))
            self.assertTrue(bool((given == 1).all()))
            self.assertTrue(torch.equal(swapped, torch.arange(float(n))))

    @ranks.on(2)
    def test_without_a_gpu(self, rank, n):
        """A device that is not there is an error on all ranks, and the group goes on."""
        if torch.cuda.is_available():
            return
        with self.assertRaisesRegex(RuntimeError, "(?i)cuda"):
            dist.group.WORLD._lanes._on(DEVICE)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.tolist(), [2, 2])


if __name__ == "__main__":
    ranks.main()
