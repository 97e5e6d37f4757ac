"""tutti_torch.all_reduce_, and the module in C under it and under dist.all_reduce: what it takes and what goes the ordinary
way, order, places, errors, and that nothing needs the module."""
import ctypes
import os
import re
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

import prerequisites
import ranks

prerequisites.require()
import torch
import torch.distributed as dist
import tutti_torch
from tutti_torch import calls, lanes, library, places

MODULE = Path(os.environ["TUTTI_LIBRARY"]).parent / "libtutti-torch.so"
HERE = r"[\w./-]*test_direct\.py"
needs_module = unittest.skipUnless(MODULE.exists(), f"there is no {MODULE.name}: it is built where Python.h is")


def trace_of(group):
    with tempfile.TemporaryDirectory() as scratch:
        path = f"{scratch}/trace"
        api = library.load()
        api.tuttiDumpTrace.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        group._communicator.check(api.tuttiDumpTrace(group._communicator.handle, path.encode()))
        return "".join(file.read_text(errors="replace") for file in sorted(Path(scratch).iterdir()))


def names_of_calls(group):
    """The places of the group's last calls, according to its trace."""
    text = trace_of(group)
    return re.findall(rf"all_reduce of ([\w, \[\]]*?) at {HERE}:(\d+)", text)


class Direct(unittest.TestCase):
    def same(self, actual, expected):
        self.assertEqual((actual.dtype, actual.shape), (expected.dtype, expected.shape))
        self.assertTrue(torch.equal(actual, expected), f"{actual} is not {expected}")

    @ranks.on(2)
    def test_everything_that_c10d_takes(self, rank, n):
        """With the results of dist.all_reduce, which has its own tests."""
        types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
                 torch.int32, torch.int64, torch.bool, torch.complex64]
        for name, op in tutti_torch.tensors.OPS.items():
            for dtype in types:
                if (dtype.is_floating_point or dtype.is_complex) and name[0] == "b" or dtype.is_complex and name != "sum":
                    continue
                if dtype is torch.bool and name == "avg":
                    continue
                mine = (torch.arange(12).view(3, 4) % 3 + rank).to(dtype)
                for form in (mine, mine.t(), mine[:, ::2], mine[0, 0], mine[:0], torch.nn.Parameter(mine, requires_grad=False)):
                    expected, tensor = form.clone(), form.clone(memory_format=torch.preserve_format)
                    dist.all_reduce(expected, op)
                    tutti_torch.all_reduce_(tensor, name)
                    self.same(tensor.data, expected)
        strided = torch.zeros(10)
        strided[::2] = 1
        tutti_torch.all_reduce_(strided[::2])
        self.same(strided, torch.tensor([float(n), 0.0] * 5))
        sparse = torch.eye(3).to_sparse()
        tutti_torch.all_reduce_(sparse)
        self.same(sparse.to_dense(), n * torch.eye(3))
        for tensor in (sparse.bool(), torch.ones(3, dtype=torch.bool)):
            with self.assertRaisesRegex(tutti_torch.TuttiError, "AVG of torch.bool: no such reduction"):
                dist.all_reduce(tensor, dist.ReduceOp.AVG)

    @ranks.on(3)
    def test_groups(self, rank, n):
        pair = dist.new_group([0, 2])
        gloo = dist.new_group(backend="gloo")
        tensor = torch.ones(2)
        tutti_torch.all_reduce_(tensor, group=gloo)
        self.same(tensor, torch.full((2,), 3.0))
        if rank != 1:
            tutti_torch.all_reduce_(tensor, "sum", pair)
            self.same(tensor, torch.full((2,), 6.0))
            return
        with self.assertWarnsRegex(UserWarning, "does not belong to the given group"):
            tutti_torch.all_reduce_(tensor, "sum", pair)

    @needs_module
    @ranks.on(2)
    def test_short_way(self, rank, n):
        """Suitable calls take the short way in both functions, and nothing of the ordinary way is called."""
        group, ordinary = dist.group.WORLD, AssertionError("went the ordinary way")
        self.assertEqual(calls.short.__file__, str(MODULE))
        name = "__dlpack_c_exchange_api__"  # missing in older versions of torch
        for interface in (getattr(torch.Tensor, name, None), None):
            with mock.patch.object(torch.Tensor, name, interface, create=True):
                calls.load.cache_clear()
                calls.load()
            for shape in ((2, 3), (), (0,), (1, 2, 1, 1, 1, 1, 1, 2)):
                tensor = torch.ones(shape)
                with mock.patch.object(dist, "all_reduce", side_effect=ordinary):
                    tutti_torch.all_reduce_(tensor)
                    tutti_torch.all_reduce_(tensor, "max", group)
                with mock.patch.object(type(group), "_all_reduce", side_effect=ordinary):
                    dist.all_reduce(tensor)
                self.same(tensor, torch.full(shape, 4.0))

    @ranks.on(2)
    def test_many_dimensions(self, rank, n):
        """More dimensions than the module compares: the name is right each time."""
        for shape in ([1] * 8 + [2], [1] * 7 + [2, 1]):
            tutti_torch.all_reduce_(torch.ones(shape))
        told = [name for name, _ in names_of_calls(dist.group.WORLD)]
        self.assertEqual(told, [f"float32{shape}" for shape in ([1] * 8 + [2], [1] * 7 + [2, 1])])

    def all_of_them(self, rank, n, form):
        """Every operation that has a short way, once, on tensors of this form; their results are right."""
        def tensor(values):
            made = form(torch.tensor(values))
            made.copy_(torch.tensor(values))
            return made

        x = tensor([rank + 1.0, 7.0])
        dist.reduce(x, 1)
        if rank == 1:
            self.same(x, torch.tensor([3.0, 14.0]))
        x = tensor([rank, rank])
        dist.broadcast(x, 1)
        self.same(x, torch.tensor([1, 1]))
        mine, everyone = tensor([rank + 1.0, 5.0]), tensor([0.0] * (2 * n))
        dist.all_gather_into_tensor(everyone, mine)
        self.same(everyone, torch.tensor([1.0, 5.0, 2.0, 5.0]))
        dist.reduce_scatter_tensor(mine, everyone, dist.ReduceOp.PRODUCT)
        self.same(mine, torch.tensor([[1.0, 25.0], [4.0, 25.0]])[rank])
        dist.all_reduce(mine, dist.ReduceOp.MIN)
        self.same(mine, torch.tensor([1.0, 25.0]))

    @ranks.on(2)
    def test_other_operations(self, rank, n):
        """Whatever the tensors are like, and however they differ between ranks."""
        def unaligned(like):
            return torch.zeros(8 * like.numel() + 1, dtype=torch.uint8)[1:].view(torch.uint8).numpy()[
                : like.numel() * like.itemsize].view(str(like.dtype).removeprefix("torch."))

        forms = {
            "plain": torch.empty_like,
            "every other element": lambda like: torch.empty(2 * like.numel(), dtype=like.dtype)[::2],
            "unaligned": lambda like: torch.from_numpy(unaligned(like)),
            "parameter": lambda like: torch.nn.Parameter(torch.empty_like(like), requires_grad=False),
        }
        for name, form in forms.items():
            with self.subTest(name):
                self.all_of_them(rank, n, form)
        self.all_of_them(rank, n, forms["plain" if rank == 0 else "every other element"])
        dist.barrier()
        with self.assertRaisesRegex(tutti_torch.TuttiError, "do not make 5"):
            dist.all_gather_into_tensor(torch.empty(5), torch.empty(2))
        with self.assertRaisesRegex(tutti_torch.TuttiError, "do not make 4 of torch.float64"):
            dist.all_gather_into_tensor(torch.empty(4, dtype=torch.float64), torch.empty(2))

    @needs_module
    @ranks.on(2)
    def test_short_way_of_others(self, rank, n):
        with mock.patch.object(lanes.HostLane, "launch", side_effect=AssertionError("went the ordinary way")):
            self.all_of_them(rank, n, torch.empty_like)
            dist.barrier()
            with self.assertRaisesRegex(AssertionError, "ordinary way"):
                dist.broadcast(torch.ones(1), 0, async_op=True)

    @needs_module
    @ranks.on(2)
    def test_places_of_others(self, rank, n):
        """With the names that the ordinary way uses for them."""
        group = dist.group.WORLD
        for short in (calls.short, calls._Absent):
            with mock.patch.object(calls, "short", short):
                dist.broadcast(torch.ones(2), 0)
                dist.reduce(torch.ones(2), 0)
                dist.all_gather_into_tensor(torch.ones(2 * n), torch.ones(2))
                dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * n))
                dist.barrier()
        told = re.findall(rf"(\w+(?: of [\w, \[\]]*?)?) at {HERE}:(\d+)", trace_of(group))
        self.assertEqual(told[:5], told[5:])
        self.assertEqual([what for what, _ in told[:5]], ["broadcast of float32[2]", "reduce of float32[2]",
                         "all_gather_single of float32[2]", f"reduce_scatter of float32[{2 * n}]", "barrier"])

    @ranks.on(2)
    def test_order(self, rank, n):
        """An operation in progress is not overtaken, and the next one does not start before it ends."""
        for turn in range(20):
            tensor = torch.ones(100_000)
            before = dist.all_reduce(tensor, async_op=True)
            tutti_torch.all_reduce_(tensor)
            after = dist.all_reduce(tensor, async_op=True)
            tutti_torch.all_reduce_(tensor)
            self.same(tensor, torch.full((100_000,), 16.0))
            before.wait()
            after.wait()

    @ranks.on(2)
    def test_places(self, rank, n):
        """Each call is reported where it was made, whatever its shape and however often."""
        group, line = dist.group.WORLD, sys._getframe().f_lineno

        def both(shape, dtype=torch.float32):
            tutti_torch.all_reduce_(torch.ones(shape, dtype=dtype))
            dist.all_reduce(torch.ones(shape, dtype=dtype))

        expected = []
        for shape, dtype in (([4], "float32"), ([2, 2], "float32"), ([4], "float32"), ([4], "float64"), ([4], "float32")):
            both(shape, getattr(torch, dtype))
            expected += [(f"{dtype}{shape}", str(line + offset)) for offset in (3, 4)]
        self.assertEqual(names_of_calls(group), expected)
        # More others than the library remembers.
        for size in range(5000):
            places.number("other", torch.empty(size), 1, None)
        both([4])
        self.assertEqual(names_of_calls(group)[-2:], expected[:2])
        self.assertEqual(len([key for key in places._numbers if key[0] == "all_reduce"]), 2)  # named again

    @needs_module
    @ranks.on(2)
    def test_waits_without_the_interpreter(self, rank, n):
        """Rank 1 comes only after another thread of rank 0 has held the interpreter often."""
        store = dist.distributed_c10d._get_default_store()

        def others_work():
            for _ in range(100):
                time.sleep(0.0005)
            store.set("go", "1")

        if rank == 0:
            worker = threading.Thread(target=others_work)
            worker.start()
        else:
            store.get("go")
        tensor = torch.ones(2)
        tutti_torch.all_reduce_(tensor)
        self.same(tensor, torch.full((2,), 2.0))

    @ranks.on(2)
    def test_threads(self, rank, n):
        """One group per thread, in several threads: results do not mix."""
        groups = [dist.new_group() for _ in range(3)]
        wrong = []

        def work(group, value):
            for size in [1, 7, 3] * 50:
                tensor = torch.full((size,), value)
                tutti_torch.all_reduce_(tensor, "sum", group)
                if not torch.equal(tensor, torch.full((size,), 2 * value)):
                    wrong.append(tensor)

        threads = [threading.Thread(target=work, args=(group, float(i))) for i, group in enumerate(groups)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    @ranks.on(2)
    def test_wrong_arguments(self, rank, n):
        with self.assertRaisesRegex(tutti_torch.TuttiError, "op='plus' is none of sum, product"):
            tutti_torch.all_reduce_(torch.ones(2), "plus")
        with self.assertRaisesRegex(RuntimeError, "meta.*host memory"):
            tutti_torch.all_reduce_(torch.ones(2, device="meta"))
        with self.assertRaisesRegex(TypeError, "torch.Tensor"):
            tutti_torch.all_reduce_([1.0])
        tensor = torch.ones(2)
        tutti_torch.all_reduce_(tensor)
        self.same(tensor, torch.full((2,), 2.0))

    def test_compiled(self):
        """Traced as a whole, and its place in the program's order is kept."""
        import torch._dynamo  # imported here, so that the ranks need not spend seconds on it

        ranks.run(self.compiled, 2)

    def compiled(self, rank, n):
        pair = dist.new_group()
        graphs = []

        def keep(module, inputs):
            graphs.append(module)
            return module.forward

        def step(x):
            y = x * 2
            tutti_torch.all_reduce_(y)
            z = y + 1
            tutti_torch.all_reduce_(z, "max")
            return y + z

        expected = torch.tensor([6.0, 6.0]) * 2 + 1
        self.same(torch.compile(step, fullgraph=True, backend=keep)(torch.ones(2) + rank), expected)
        self.assertEqual(len(re.findall(r"torch\.ops\.tutti\.all_reduce_\(", graphs[0].code)), 2)
        self.same(torch.compile(step, fullgraph=True, backend="aot_eager")(torch.ones(2) + rank), expected)
        given = torch.compile(lambda x: tutti_torch.all_reduce_(x, "sum", pair), fullgraph=True, backend="aot_eager")
        tensor = torch.ones(3)
        given(tensor)
        self.same(tensor, torch.full((3,), 2.0))


class Failures(unittest.TestCase):
    def test_mismatch_names_the_place(self):
        """The message is that of dist.all_reduce, on both ranks."""

        def body(rank, n, path):
            ranks.init(prerequisites.BACKEND, path, rank, n)
            line = sys._getframe().f_lineno
            with self.assertRaisesRegex(tutti_torch.TuttiError, rf"float32\[3\] at {HERE}:{line + 3}.*") as caught:
                for size in (2, 3 + rank):
                    tutti_torch.all_reduce_(torch.ones(size))
            self.assertRegex(str(caught.exception), rf"float32\[4\] at {HERE}:{line + 3}")

        ranks.run(body, 2, joined=False)

    def test_destroyed_and_aborted(self):
        def body(rank, n, path):
            ranks.init(prerequisites.BACKEND, path, rank, n)
            group, tensor = dist.group.WORLD, torch.ones(2)
            store = dist.distributed_c10d._get_default_store()
            tutti_torch.all_reduce_(tensor)
            if rank == 0:
                # While this rank waits for the other one, which never comes.
                threading.Timer(0.3, group.abort).start()
                with self.assertRaises(tutti_torch.TuttiError):
                    tutti_torch.all_reduce_(tensor)
                with self.assertRaisesRegex(tutti_torch.TuttiError, "was destroyed"):
                    tutti_torch.all_reduce_(tensor)
                store.set("aborted", "1")
            else:
                store.get("aborted")
                # Rank 0's part of the first operation may have arrived already.
                with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 0"):
                    tutti_torch.all_reduce_(tensor)
                    tutti_torch.all_reduce_(tensor)

        ranks.run(body, 2, joined=False)

    def test_forked_child(self):
        """The group belongs to the parent: the child gets an error, and the parent's group still works."""

        def body(rank, n):
            tensor = torch.ones(2)
            tutti_torch.all_reduce_(tensor)
            child = os.fork()
            if child == 0:
                try:
                    tutti_torch.all_reduce_(tensor)
                except tutti_torch.TuttiError as error:
                    os._exit(0 if "fork" in str(error) else 2)
                os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            tutti_torch.all_reduce_(tensor)
            self.assertEqual(tensor.tolist(), [4.0, 4.0])

        ranks.run(body, 2)


class Module(unittest.TestCase):
    def test_without_it(self):
        """Everything goes by ctypes, which is reported once, even if the file is no module."""

        def body(rank, n, path):
            with tempfile.TemporaryDirectory() as scratch, mock.patch.object(library, "folder", lambda: Path(scratch)):
                if rank == 1:
                    Path(scratch, MODULE.name).write_bytes(b"nothing")
                with self.assertLogs("tutti_torch", "INFO") as logs:
                    ranks.init(prerequisites.BACKEND, path, rank, n)
                    dist.new_group()
            self.assertEqual(len([line for line in logs.output if "calling libtutti through ctypes" in line]), 1)
            line, tensor = sys._getframe().f_lineno, torch.ones(3)
            tutti_torch.all_reduce_(tensor)
            dist.all_reduce(tensor)
            self.assertEqual(tensor.tolist(), [4.0] * 3)
            self.assertEqual(
                names_of_calls(dist.group.WORLD), [("float32[3]", str(line + 1)), ("float32[3]", str(line + 2))])
            dist.destroy_process_group()

        ranks.run(body, 2, joined=False)

    @needs_module
    def test_of_another_version(self):
        calls.load.cache_clear()
        self.addCleanup(calls.load.cache_clear)
        with mock.patch.object(calls, "VERSION", calls.VERSION + 1), self.assertLogs("tutti_torch", "INFO") as logs:
            self.assertIs(calls.load(), calls._Absent)
        self.assertRegex(logs.output[0], "does not match this package's version")

    @ranks.on(2)
    def test_places_in_functions_alike(self, rank, n):
        group, line = dist.group.WORLD, sys._getframe().f_lineno

        def one(tensor):
            tutti_torch.all_reduce_(tensor)

        def other(tensor):
            tutti_torch.all_reduce_(tensor)

        one(torch.ones(4))
        other(torch.ones(4))
        self.assertEqual(names_of_calls(group), [("float32[4]", str(line + 3)), ("float32[4]", str(line + 6))])

    @ranks.on(2)
    def test_current_directory_is_gone(self, rank, n):
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.tolist(), [2.0] * 3)
        os.chdir("/")


if __name__ == "__main__":
    ranks.main()
