"""What torch and others ask of a backend: one for each kind of device, the profiler, TORCH_DISTRIBUTED_DEBUG=DETAIL,
split_group, asynchronous checkpoints."""
import pickle
import tempfile
import unittest
from unittest import mock

import prerequisites
import ranks

prerequisites.require()
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import tutti_torch
from torch._C import _distributed_c10d as c10d

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def start(backend, rank, size, path):
    ranks.init(backend, path, rank, size)
    return dist.group.WORLD


class Device(unittest.TestCase):
    def check_sums(self, n, group=None):
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        self.assertEqual(tensor.tolist(), [n] * 3)

    def run_ranks(self, body, size=2):
        ranks.run(body, size, joined=False)

    def test_alone(self):
        def body(rank, n, path):
            group = start("tutti", rank, n, path)
            self.assertEqual(set(group._device_types), {CPU, CUDA})
            for device in (CPU, CUDA):
                backend = group._get_backend(device)
                self.assertEqual((backend.name(), backend.rank(), backend.size()), ("tutti", rank, n))
            with self.assertRaisesRegex(RuntimeError, "no backend for xpu"):
                group._get_backend(torch.device("xpu"))
            tensor = torch.ones(2)
            group._get_backend(CPU).allreduce([tensor]).wait()
            self.assertEqual(tensor.tolist(), [n, n])
            dist.destroy_process_group()

        self.run_ranks(body)

    def test_of_host_memory(self):
        """With the other devices' backends after Tutti's and before it; torch's own backend gets the calls on their tensors."""

        def body(rank, n, path):
            for backend in ("cpu:tutti,cuda:gloo", "cuda:gloo,cpu:tutti"):
                group = start(backend, rank, n, path)
                self.assertIs(group._get_backend(CPU), group)
                self.assertIsInstance(group._get_backend(CUDA), c10d.ProcessGroupGloo)
                self.assertEqual(set(group._device_types), {CPU, CUDA})
                self.check_sums(n)
                tutti_torch.all_reduce_(torch.ones(1))
                self.check_sums(2, dist.new_group([0, 1]))
                answers = [None] * n
                dist.all_gather_object(answers, rank)
                self.assertEqual(answers, list(range(n)))
                # Tensors on a device go to the other group.
                on_device = mock.patch("tutti_torch.devices._first_tensor", lambda _: mock.Mock(device=CUDA))
                with on_device, mock.patch.object(group, "_others") as theirs:
                    dist.all_reduce(torch.ones(2))
                    group._start_coalescing(CUDA)
                    group._end_coalescing(CUDA)
                theirs.allreduce.assert_called_once()
                theirs._start_coalescing.assert_called_once_with(CUDA)
                theirs._end_coalescing.assert_called_once_with(CUDA)
                self.assertEqual(len(dist.distributed_c10d._world.pg_map), 2)
                dist.destroy_process_group()

        self.run_ranks(body)

    def test_of_the_device(self):
        """Host memory belongs to gloo in all of its calls; Tutti serves tensors on the device."""

        def body(rank, n, path):
            group = start("cpu:gloo,cuda:tutti", rank, n, path)
            self.assertIsInstance(group._get_backend(CPU), c10d.ProcessGroupGloo)
            self.assertIs(group._get_backend(CUDA), group)
            with mock.patch.object(tutti_torch.TuttiProcessGroup, "_all_reduce", side_effect=AssertionError("Tutti's")):
                self.check_sums(n)
                tensor = torch.ones(2)
                tutti_torch.all_reduce_(tensor)
                self.assertEqual(tensor.tolist(), [n, n])
            # Methods that torch's groups have in Python, but its backends do not.
            whole, part, mine = torch.zeros(n), torch.zeros(1), torch.full((1,), float(rank))
            dist.all_gather_into_tensor(whole, mine)
            self.assertEqual(whole.tolist(), [*range(n)])
            dist.reduce_scatter_tensor(part, whole)
            self.assertEqual(part.item(), n * rank)
            dist.all_to_all_single(whole, mine.repeat(n))
            self.assertEqual(whole.tolist(), [*range(n)])
            self.assertEqual((functional.all_gather_tensor(mine, 0, group) + 0).tolist(), [*range(n)])
            dist.barrier()
            dist.destroy_process_group()

        self.run_ranks(body)


class Coalesced(unittest.TestCase):
    @ranks.on(2)
    def test_all_kinds(self, rank, n):
        """What torch hands over at the end, what it calls at once, and messages: nobody waits for the single works."""
        sums, swapped, got, group = [torch.ones(1000), torch.ones(3)], torch.zeros(n), torch.zeros(2), dist.group.WORLD
        for is_async in (True, False):
            with dist.distributed_c10d._coalescing_manager(group, CPU, is_async) as coalesced:
                for tensor in sums:
                    dist.all_reduce(tensor)
                dist.all_to_all_single(swapped, torch.full((n,), float(rank)), async_op=True)
                dist.irecv(got, 1 - rank)
                dist.isend(torch.full((2,), float(rank)), 1 - rank)
            coalesced.wait()
            self.assertEqual((swapped.tolist(), got.tolist()), ([0, 1], [1 - rank] * 2))
        self.assertEqual([tensor.tolist() for tensor in sums], [[4] * 1000, [4] * 3])

    @ranks.on(2)
    def test_failure(self, rank, n):
        """That of one of them is the manager's."""
        with self.assertRaisesRegex(tutti_torch.TuttiError, r"(?=.*count=3\b).*count=4\b"):
            with dist.distributed_c10d._coalescing_manager(device=CPU, async_ops=True) as coalesced:
                dist.all_to_all_single(torch.zeros(n), torch.zeros(n), async_op=True)
                dist.broadcast(torch.ones(3 + rank), 0, async_op=True)
            coalesced.wait()
            dist.barrier()


class Watched(unittest.TestCase):
    def test_profiler(self):
        """As it sees gloo: c10d's operator and the backend's, with shapes; the latter with its real duration."""
        ranks.run(self.profiled, 2)

    def profiled(self, rank, n):
        store = dist.distributed_c10d._get_default_store()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            dist.all_reduce(torch.ones(3, 5))
            tutti_torch.all_reduce_(torch.ones(3, 5))
            dist.broadcast(torch.ones(7), 0)
            dist.barrier()
            work = dist.all_gather_into_tensor(torch.ones(8), torch.ones(4), async_op=True) if rank == 0 else None
            with torch.profiler.record_function("in between"):
                store.set("go", "1") if rank == 0 else store.get("go")
            work.wait() if work else dist.all_gather_into_tensor(torch.ones(8), torch.ones(4))
        events = {}
        for event in profile.events():
            events.setdefault(event.name, []).append(event)
        for name, count, shape in (("all_reduce", 2, [[3, 5]]), ("broadcast", 1, [[7]]), ("barrier", 1, [])):
            operator = "c10d::" + (name + "_" if name != "all_reduce" else "allreduce_").replace("barrier_", "barrier")
            for seen in (events[operator], events[f"tutti:{name}"]):
                self.assertEqual([event.input_shapes for event in seen], [shape] * count)
        if rank == 0:
            (ours,), (between,) = events["tutti:all_gather_single"], events["in between"]
            self.assertGreater(ours.time_range.end, between.time_range.start)

    def test_detail(self):
        """Every rank is told which calls differ, even if the bytes would match, and the group still works."""

        def body(rank, n, path):
            dist.set_debug_level(dist.DebugLevel.DETAIL)
            group = start("tutti", rank, n, path)
            self.assertIsInstance(group, tutti_torch.TuttiProcessGroup)
            tensor = torch.ones(4)
            dist.all_reduce(tensor)
            self.assertEqual(tensor.tolist(), [n] * 4)
            out = torch.zeros(2 * n)
            dist.all_gather_into_tensor(out, torch.full((2,), float(rank)))
            self.assertEqual(out.tolist(), [float(r) for r in range(n) for _ in range(2)])
            out = torch.zeros(2)
            dist.reduce_scatter_tensor(out, torch.arange(2.0 * n))
            self.assertEqual(out.tolist(), [n * 2.0 * rank, n * (2.0 * rank + 1)])
            dist.all_to_all_single(torch.empty(n), torch.ones(n))
            dist.broadcast(tensor, 0)
            dist.barrier()
            tensor = torch.ones(4)
            tutti_torch.all_reduce_(tensor) if rank else dist.all_reduce(tensor)
            self.assertEqual(tensor.tolist(), [n] * 4)
            with self.assertRaisesRegex(tutti_torch.TuttiError, "mismatch.*rank 0: allreduce of .*2.*1: allreduce of .*3"):
                tutti_torch.all_reduce_(torch.ones(2 + rank))
            for differs, sentence in (
                (lambda: dist.all_reduce(torch.ones(2 + rank, 3 - rank)), r"0: allreduce of .*\[2, 3\].*1: .*\[3, 2\]"),
                (lambda: dist.barrier() if rank else dist.all_reduce(torch.ones(3)), r"0: allreduce of.*1: barrier"),
                (lambda: dist.broadcast(torch.ones(4, dtype=(torch.int32, torch.float32)[rank]), 0), r"0: broadcast of int32\[4\].*1: .*float32"),
            ):
                with self.assertRaisesRegex(tutti_torch.TuttiError, "mismatch.*rank " + sentence):
                    differs()
            dist.barrier()
            dist.destroy_process_group()

        ranks.run(body, 2, joined=False)

    # torch 2.14 has the hook, but nothing to show what it has recorded.
    @unittest.skipUnless("backend" in (getattr(c10d, "_dump_fr_trace", None).__doc__ or ""), "this torch (before 2.15) shows its own backends only")
    def test_flight_recorder(self):
        def body(rank, n, path):
            with mock.patch.dict("os.environ", TORCH_FR_BUFFER_SIZE="100"):
                start("tutti", rank, n, path)
            tensor = torch.ones(3, 5)
            dist.all_reduce(tensor)
            dist.broadcast(tensor, 0, async_op=True).wait()
            self.assertEqual(tensor.sum().item(), 15 * n)
            entries = pickle.loads(c10d._dump_fr_trace(backend="tutti"))["entries"]
            self.assertEqual([entry["profiling_name"] for entry in entries], ["tutti:all_reduce", "tutti:broadcast"])
            self.assertEqual(entries[0]["input_sizes"], [[3, 5]])
            dist.destroy_process_group()

        ranks.run(body, 2, joined=False)

    @ranks.on(3)
    def test_split_group(self, rank, n):
        group, name = dist.group.WORLD, "odd and even"
        part = group.split_group([2, 0], group_name=name, group_desc="two of three")
        self.assertEqual(part is None, rank == 1)
        if part is not None:
            self.assertEqual((part.rank(), part.size(), part.group_name), (1 - rank // 2, 2, name))
            tensor = torch.ones(1)
            part.allreduce([tensor]).wait()
            self.assertEqual(tensor.item(), 2)
            part.shutdown()
        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15):
            made = dist.split_group(split_ranks=[[0, 2], [1]])
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=made)
            self.assertEqual(tensor.item(), 1 + (rank != 1))

    @ranks.on(2)
    def test_checkpoint(self, rank, n):
        """Saved asynchronously into one folder, and loaded again."""
        import torch.distributed.checkpoint as checkpoint

        folders = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folders)
        mine = {f"weights {rank}": torch.full((5,), float(rank)), "step": 7}
        checkpoint.async_save(mine, checkpoint_id=folders[0]).result()
        dist.barrier()
        read = {f"weights {rank}": torch.zeros(5), "step": 0}
        checkpoint.load(read, checkpoint_id=folders[0])
        self.assertEqual((read[f"weights {rank}"].tolist(), read["step"]), ([float(rank)] * 5, 7))


if __name__ == "__main__":
    ranks.main()
