"""Operations on CUDA devices and torch's streams, without a GPU: on a made-up one (made_up_gpu.py)."""
import os
import signal
import threading
import unittest
import weakref
from unittest import mock

import prerequisites
import ranks

prerequisites.require()
import torch
import torch.distributed as dist
from made_up_gpu import DEVICE, made_up_gpu
from tutti_torch import TuttiError, lanes, library


def joins_then(group, does):
    """Calls does() when the group joins a device."""
    join = group._lanes._join
    return mock.patch.object(group._lanes, "_join", lambda *arguments: (does(), join(*arguments))[1])


def after_a_broadcast(group):
    """From now on a rank ends one like that which precedes the join of a device without waiting for the last rank."""
    dist.broadcast(torch.ones(lanes._SAID_BYTES, dtype=torch.uint8), 0, group)


class CudaStreams(unittest.TestCase):
    @ranks.on(2)
    def test_order(self, rank, n):
        """The operation waits for work in the current stream; work after wait() waits for the operation; the host waits for
        neither."""
        store = dist.distributed_c10d._get_default_store()
        with made_up_gpu() as cuda:
            gate, tensor, seen = threading.Event(), torch.zeros(1000), []
            cuda.now.kernel(lambda: (gate.wait(60), tensor.fill_(rank + 1)))
            work = dist.all_reduce(tensor, async_op=True)
            self.assertFalse(work.is_completed())
            self.assertTrue(work.wait())
            cuda.now.kernel(lambda: seen.append(tensor.clone()))
            dist.all_reduce(tensor)
            # Both ranks get here before the first kernel of either continues.
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
        """Other streams keep running beside an operation that nobody has waited for."""
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
        """Memory that an operation uses lives until it is done, even if its caller drops everything."""
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

    @ranks.on(2)
    def test_memory_after_wait(self, rank, n):
        """It is released once the stream in whose order it is reused waits for the operation, but not if another does."""
        with made_up_gpu() as cuda:
            gate, gone = threading.Event(), []
            cuda.now.kernel(lambda: gate.wait(60))
            for waits in (cuda.now, cuda.Stream()):
                tensor = torch.ones(1000)
                gone.append(weakref.ref(tensor))
                work = dist.all_reduce(tensor, async_op=True)
                with torch.cuda.stream(waits):
                    work.wait()
                del tensor, work
            self.assertEqual([each() is None for each in gone], [True, False])
            gate.set()
            waits.synchronize()

    @ranks.on(2)
    def test_coalescing(self, rank, n):
        """The manager's work is the operations', on the stream of the device."""
        with made_up_gpu() as cuda:
            gate, tensors, seen = threading.Event(), [torch.ones(3), torch.ones(3)], []
            cuda.now.kernel(lambda: gate.wait(60))
            with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as coalesced:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            (work,) = coalesced.works
            self.assertFalse(work.is_completed())
            work.wait()
            cuda.now.kernel(lambda: seen.extend(tensor.tolist() for tensor in tensors))
            self.assertEqual(seen, [])
            gate.set()
            cuda.now.synchronize()
            self.assertEqual(seen, [[2, 2, 2]] * 2)

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
            rows, dealt = list(torch.zeros(n, 2)), torch.zeros(2)
            works.append(dist.gather(torch.full((2,), float(rank)), rows if rank == 1 else None, 1, async_op=True))
            works.append(dist.scatter(dealt, [torch.full((2,), float(peer)) for peer in range(n)] if rank == 2 else None, 2, async_op=True))
            for work in works:
                work.wait()
            cuda.now.synchronize()
            for peer in range(n):
                self.assertTrue(bool((everyone[peer] == peer).all()))
                self.assertEqual(rows[peer].tolist(), [peer * (rank == 1)] * 2)
            self.assertTrue(torch.equal(part, n * flat[4 * rank : 4 * rank + 4]))
            self.assertTrue(bool((given == 1).all()))
            self.assertTrue(torch.equal(swapped, torch.arange(float(n))))
            self.assertEqual(dealt.tolist(), [rank, rank])

    @ranks.on(2)
    def test_without_a_gpu(self, rank, n):
        """A missing device is an error on all ranks, and the group still works."""
        if torch.cuda.is_available():
            return
        with self.assertRaisesRegex(RuntimeError, "(?i)cuda"):
            dist.group.WORLD._lanes._on(DEVICE)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.tolist(), [2, 2])

    @ranks.on(2)
    def test_join_of_a_device_whose_group_is_aborted(self, rank, n):
        """By another thread, while rank 1 does not come to the device."""
        group, store = dist.new_group(), dist.distributed_c10d._get_default_store()
        after_a_broadcast(group)
        if rank == 0:
            aborting = threading.Thread(target=group.abort)
            with made_up_gpu(), joins_then(group, aborting.start), self.assertRaisesRegex(TuttiError, "destroyed"):
                dist.all_reduce(torch.ones(2), group=group)
            aborting.join()
            store.set("aborted", "")
        store.wait(["aborted"])

    @ranks.on(2)
    def test_join_of_a_device_that_rank_0_cannot_offer(self, rank, n):
        """All ranks are told why, and the group still works."""
        error = TuttiError("no port is free", library.INVALID_USAGE)
        with made_up_gpu() as cuda:
            refused = mock.patch.object(lanes, "make_id", side_effect=error)
            with refused, self.assertRaisesRegex(TuttiError, "rank 0 .*cuda:0: no port is free$") as caught:
                dist.all_reduce(torch.ones(2))
            self.assertEqual(caught.exception.code, library.INVALID_USAGE)
            tensor = torch.ones(2)
            dist.all_reduce(tensor)
            cuda.now.synchronize()
            self.assertEqual(tensor.tolist(), [2, 2])

    def test_join_of_a_device_that_one_rank_never_comes_to(self):
        """It died, or calls an operation in host memory instead."""

        def body(rank, n, path):
            ranks.init(prerequisites.BACKEND, path, rank, n)
            after_a_broadcast(dist.group.WORLD)
            group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
            if rank == 2:
                store.wait(["joins0", "joins1"])
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                with self.assertRaisesRegex(TuttiError, "Barrier"):
                    dist.barrier()
                return
            joins = joins_then(group, lambda: store.set(f"joins{rank}", ""))
            with made_up_gpu(), joins, self.assertRaisesRegex(TuttiError, "rank 2 .*died" if dies else "Barrier"):
                dist.all_reduce(torch.ones(2))

        for dies in (True, False):
            ranks.run(body, 3, joined=False, dies=2 if dies else None)


if __name__ == "__main__":
    ranks.main()
