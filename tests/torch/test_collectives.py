"""Every collective, with types, sizes and layouts that c10d's callers use."""
import functools
import os
import time
import unittest
import weakref
from datetime import timedelta
from unittest import mock

import prerequisites
import ranks

prerequisites.require()
import torch
import torch.distributed as dist
import tutti_torch

SIZES = [0, 1, 3, 1000, 70_001]


def pattern(rank, size, dtype=torch.float32):
    """Small whole numbers, so that sums are exact in every type but the smallest."""
    values = (torch.arange(size) + 3 * rank) % 5 + 1
    return values.to(dtype) if dtype is not torch.bool else values > 2


class Collectives(unittest.TestCase):
    def same(self, actual, expected):
        self.assertEqual(actual.dtype, expected.dtype)
        self.assertEqual(actual.shape, expected.shape)
        self.assertTrue(torch.equal(actual, expected), f"{actual} is not {expected}")

    @ranks.on(1, 2, 4)
    def test_all_reduce(self, rank, n):
        folds = {
            dist.ReduceOp.SUM: torch.Tensor.add,
            dist.ReduceOp.PRODUCT: torch.Tensor.mul,
            dist.ReduceOp.MIN: torch.minimum,
            dist.ReduceOp.MAX: torch.maximum,
        }
        types = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
                 torch.int32, torch.int64]
        for op, fold in folds.items():
            for dtype in types:
                for size in SIZES if dtype is torch.float32 else [5]:
                    expected = pattern(0, size, dtype)
                    for peer in range(1, n):
                        expected = fold(expected, pattern(peer, size, dtype))
                    tensor = pattern(rank, size, dtype)
                    dist.all_reduce(tensor, op)
                    self.same(tensor, expected)

    @ranks.on(3)
    def test_average_and_scaled_sum(self, rank, n):
        tensor = torch.full((5,), float(rank))
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        self.same(tensor, torch.full((5,), 1.0))
        tensor = torch.full((5,), float(rank))
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0))
        self.same(tensor, torch.full((5,), 6.0))
        for dtype, default, factor in ((torch.float64, torch.float32, 0.1), (torch.float32, torch.bfloat16, 1 / 3)):
            tensor, expected = torch.ones(2, dtype=dtype), sum(torch.full((2,), factor, dtype=dtype) for _ in range(3))
            torch.set_default_dtype(default)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
            torch.set_default_dtype(torch.float32)
            self.same(tensor, expected)
        with self.assertRaisesRegex(tutti_torch.TuttiError, "PREMUL_SUM: the factor is complex; .*SUM"):
            dist.all_reduce(torch.ones(2, dtype=torch.complex64), dist._make_nccl_premul_sum(torch.tensor(1j)))
        for dtype in (torch.complex64, torch.bfloat16):
            tensor = torch.full((5,), rank + (0.5j if dtype.is_complex else 0), dtype=dtype)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
            self.same(tensor, torch.full((5,), 1.5 + (0.75j if dtype.is_complex else 0), dtype=dtype))
        for dtype in (torch.int32, torch.int16, torch.uint8, torch.bool):
            whole, part, half = torch.ones(3, dtype=dtype), torch.ones(1, dtype=dtype), dist._make_nccl_premul_sum(0.5)
            for call in (
                lambda: dist.all_reduce(whole, half),
                lambda: dist.reduce(whole, 0, half),
                lambda: dist.reduce_scatter_tensor(part, whole, half),
            ):
                with self.assertRaisesRegex(tutti_torch.TuttiError, f"PREMUL_SUM of {dtype}: .*convert the tensor"):
                    call()

    @ranks.on(3)
    def test_bits_and_truth(self, rank, n):
        for op, expected in ((dist.ReduceOp.BAND, 8), (dist.ReduceOp.BOR, 15), (dist.ReduceOp.BXOR, 15)):
            tensor = torch.tensor([8 | 1 << rank], dtype=torch.int32).repeat(3)
            dist.all_reduce(tensor, op)
            self.same(tensor, torch.tensor([expected] * 3, dtype=torch.int32))
        tensor = torch.tensor([rank == 1, False, True])
        dist.all_reduce(tensor)
        self.same(tensor, torch.tensor([True, False, True]))
        odd, share = torch.tensor([rank == 1, False, True]), torch.zeros(1, dtype=torch.bool)
        dist.reduce_scatter_tensor(share, odd, dist.ReduceOp.BXOR)
        dist.all_reduce(odd, dist.ReduceOp.BXOR)
        self.same(odd, torch.tensor([True, False, True]))
        self.same(share, odd[rank : rank + 1])
        with self.assertRaisesRegex(RuntimeError, "BAND.*float32|bitwise.*float32"):
            dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
        dist.barrier()

    @ranks.on(2)
    def test_forms(self, rank, n):
        matrix = torch.arange(12.0).view(3, 4)
        view = matrix.clone().t()
        dist.all_reduce(view)
        self.same(view, 2 * matrix.t())
        strided = torch.zeros(10)
        strided[::2] = 1
        dist.all_reduce(strided[::2])
        self.same(strided, torch.tensor([2.0, 0.0] * 5))
        number = torch.tensor([1 + 2j, rank * 1j])
        dist.all_reduce(number)
        self.same(number, torch.tensor([2 + 4j, 1j]))
        scalar = torch.tensor(3.0)
        dist.all_reduce(scalar)
        self.same(scalar, torch.tensor(6.0))
        gathered = [torch.zeros(4, 3).t() for _ in range(n)]
        dist.all_gather(gathered, matrix + rank)
        for peer in range(n):
            self.same(gathered[peer], matrix + peer)

    @ranks.on(2)
    def test_signs_that_memory_lacks(self, rank, n):
        def minus_two():
            return torch.tensor([1 + 2j]).conj().imag  # memory holds +2

        self.assertTrue(minus_two().is_neg() and minus_two().is_contiguous())
        shared = minus_two() if rank == 0 else torch.zeros(1)
        dist.broadcast(shared, 0)
        self.assertEqual(shared.item(), -2)
        gathered = [torch.zeros(1) for _ in range(n)]
        dist.all_gather(gathered, minus_two())
        self.assertEqual([each.item() for each in gathered], [-2] * n)
        summed = minus_two() if rank == 0 else torch.ones(1)
        dist.all_reduce(summed)
        self.assertEqual(summed.item(), -1)
        share = minus_two()
        dist.reduce_scatter_tensor(share, torch.full((n,), 3.0))
        self.assertEqual(share.item(), 6)

    @ranks.on(2, 4)
    def test_broadcast_and_reduce(self, rank, n):
        for root in range(n):
            for dtype in (torch.float32, torch.int16, torch.bool, torch.complex64):
                tensor = pattern(rank, 33, dtype)
                dist.broadcast(tensor, root)
                self.same(tensor, pattern(root, 33, dtype))
            tensor = pattern(rank, 33)
            dist.reduce(tensor, root)
            if rank == root:
                self.same(tensor, sum(pattern(peer, 33) for peer in range(n)))

    @ranks.on(1, 2, 4)
    def test_all_gather(self, rank, n):
        for size in SIZES:
            outputs = [torch.zeros(size) for _ in range(n)]
            dist.all_gather(outputs, pattern(rank, size))
            flat = torch.zeros(n * size)
            dist.all_gather_into_tensor(flat, pattern(rank, size))
            for peer in range(n):
                self.same(outputs[peer], pattern(peer, size))
                self.same(flat[peer * size : (peer + 1) * size], pattern(peer, size))
        # Of different sizes, including none.
        outputs = [torch.zeros(3 * peer) for peer in range(n)]
        dist.all_gather(outputs, pattern(rank, 3 * rank))
        for peer in range(n):
            self.same(outputs[peer], pattern(peer, 3 * peer))

    @ranks.on(1, 2, 4)
    def test_reduce_scatter(self, rank, n):
        total = sum(pattern(peer, 5 * n) for peer in range(n))
        output = torch.zeros(5)
        dist.reduce_scatter_tensor(output, pattern(rank, 5 * n))
        self.same(output, total[5 * rank : 5 * rank + 5])
        output = torch.zeros(5)
        dist.reduce_scatter(output, list(pattern(rank, 5 * n).split(5)))
        self.same(output, total[5 * rank : 5 * rank + 5])
        half = torch.zeros(5, dtype=torch.int16)
        dist.reduce_scatter_tensor(half, pattern(rank, 5 * n, torch.int16))
        self.same(half, total[5 * rank : 5 * rank + 5].to(torch.int16))

    @ranks.on(2, 3)
    def test_gather_and_scatter(self, rank, n):
        for root in range(n):
            outputs = [torch.zeros(7) for _ in range(n)] if rank == root else None
            dist.gather(pattern(rank, 7), outputs, dst=root)
            for peer in range(n if rank == root else 0):
                self.same(outputs[peer], pattern(peer, 7))
            output = torch.zeros(7)
            dist.scatter(output, [pattern(peer, 7) for peer in range(n)] if rank == root else None, src=root)
            self.same(output, pattern(rank, 7))

    @ranks.on(1, 3)
    def test_gather_and_scatter_of_all_forms(self, rank, n):
        """Lists whose tensors lie one after the other, and others; with and without waiting."""
        types = (torch.float32, torch.int16, torch.bool, torch.complex64, torch.float8_e5m2, torch.float64)
        for root, dtype in enumerate(types):
            root %= n
            whole = [pattern(peer, 6, torch.float32).to(dtype) for peer in range(n)]
            rows = torch.zeros(n, 2, 3, dtype=dtype)
            for into in (
                list(rows),
                list(rows)[::-1],
                [torch.zeros(3, 2, dtype=dtype).t() for _ in range(n)],
                [torch.zeros(2, 6, dtype=dtype)[:, ::2] for _ in range(n)],
            ):
                work = dist.gather(whole[rank].view(2, 3), into if rank == root else None, root, async_op=True)
                work.wait()
                for peer in range(n if rank == root else 0):
                    self.same(into[peer].contiguous().view(torch.uint8), whole[peer].view(2, 3).view(torch.uint8))
                target = torch.zeros(3, 2, dtype=dtype).t()
                dist.scatter(target, into if rank == root else None, root)
                self.same(target.contiguous().view(torch.uint8), whole[rank].view(2, 3).view(torch.uint8))
            # In place.
            if rank == root:
                rows[root] = whole[root].view(2, 3)
            dist.gather(rows[root] if rank == root else whole[rank], list(rows) if rank == root else None, root)
            dist.scatter(rows[rank], list(rows) if rank == root else None, root)
            self.same(rows[rank].view(torch.uint8), whole[rank].view(2, 3).view(torch.uint8))
        weights = [torch.nn.Parameter(torch.full((2,), float(peer))) for peer in range(n)]
        target = torch.zeros(2)
        dist.scatter(target, weights if rank == 0 else None)
        self.same(target, torch.full((2,), float(rank)))

    @ranks.on(2)
    def test_gather_and_scatter_of_different_sizes(self, rank, n):
        if rank == 0:  # no other rank needs to call
            for wrong in (torch.zeros(3), torch.zeros(2, dtype=torch.int32)):
                for call in (lambda: dist.group.WORLD.gather([wrong, wrong], torch.ones(2), 0),
                             lambda: dist.group.WORLD.scatter(torch.ones(2), [wrong, wrong], 0)):
                    with self.assertRaisesRegex(tutti_torch.TuttiError, f"{wrong.numel()} elements of {wrong.dtype}.*2 of torch.float32"):
                        call()
        with self.assertRaisesRegex(tutti_torch.TuttiError, "(?=.*Gather.count=2).*Gather.count=3"):
            dist.gather(torch.ones(2 + rank), [torch.ones(2), torch.ones(2)] if rank == 0 else None)
            dist.barrier()

    @ranks.on(2, 3)
    def test_gather_into_one_tensor(self, rank, n):
        """Called as by dist.gather_single, which torch has from 2.14 on."""
        options = dist.GatherOptions()
        for root in range(n):
            for shape in ((), (7,), (2, 3), (0,)):
                options.rootRank, options.asyncOp = root, root % 2 == 1
                output = torch.zeros(n, *shape) if rank == root else torch.empty(0)
                dist.group.WORLD.gather_single(output, torch.full(shape, rank + 1.0), options).wait()
                if rank == root:
                    self.same(output, torch.stack([torch.full(shape, peer + 1.0) for peer in range(n)]))
            if hasattr(dist, "gather_single"):
                output = torch.zeros(2 * n) if rank == root else None
                dist.gather_single(torch.full((2,), float(rank)), output, dst=root)
                if rank == root:
                    self.same(output, torch.arange(float(n)).repeat_interleave(2))
        options.rootRank = rank
        for wrong in (torch.zeros(2 * n + 1), torch.zeros(2, n).t()):
            with self.assertRaisesRegex(RuntimeError, f"2 elements from each of {n} ranks do not fit"):
                dist.group.WORLD.gather_single(wrong, torch.zeros(2), options)

    @ranks.on(1, 2, 4)
    def test_all_to_all(self, rank, n):
        outputs = [torch.zeros(peer + 1) for peer in range(n)]
        dist.all_to_all(outputs, [torch.full((rank + 1,), float(10 * rank + peer)) for peer in range(n)])
        for peer in range(n):
            self.same(outputs[peer], torch.full((peer + 1,), float(10 * peer + rank)))
        output = torch.zeros(2 * n, 3)
        dist.all_to_all_single(output, torch.full((2 * n, 3), float(rank)))
        self.same(output, torch.arange(n).repeat_interleave(2).view(-1, 1).expand(-1, 3).float())
        splits = [peer % 2 for peer in range(n)]
        output = torch.zeros(n * (rank % 2))
        dist.all_to_all_single(output, torch.full((sum(splits),), float(rank)), [rank % 2] * n, splits)
        self.same(output, torch.arange(n).float() if rank % 2 else torch.zeros(0))

    @ranks.on(2)
    def test_objects(self, rank, n):
        everyone = [None] * n
        dist.all_gather_object(everyone, {"rank": rank, "text": "x" * 1000 * rank})
        self.assertEqual([each["rank"] for each in everyone], [0, 1])
        given = ["a", 2] if rank == 0 else [None, None]
        dist.broadcast_object_list(given)
        self.assertEqual(given, ["a", 2])
        mine = [None]
        dist.scatter_object_list(mine, [{"to": 0}, {"to": 1}] if rank == 0 else None)
        self.assertEqual(mine, [{"to": rank}])

    @ranks.on(2, 4)
    def test_many_at_once(self, rank, n):
        """Asynchronous and synchronous operations keep the order of their calls; waiting works in any order."""
        tensors = [pattern(rank, 100 * i) for i in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        now = torch.ones(3)
        dist.all_reduce(now)
        self.same(now, torch.full((3,), float(n)))
        for i in reversed(range(20)):
            works[i].wait()
            self.assertTrue(works[i].is_completed() and works[i].is_success())
            self.same(tensors[i], sum(pattern(peer, 100 * i) for peer in range(n)))
        chained = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(lambda f: f.value()[0] * 2).wait()
        self.same(chained, torch.full((4,), 2.0 * n))

    @ranks.on(2)
    def test_future_that_waits_for_a_later_operation(self, rank, n):
        """Like PowerSGD's hook: its callback starts an operation and waits for it."""

        def second(first):
            later = dist.all_reduce(first.value()[0], async_op=True).get_future()
            return later.wait()[0]

        outcome = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(second).wait()
        self.same(outcome, torch.full((4,), 4.0))

    @ranks.on(4)
    def test_groups_side_by_side(self, rank, n):
        everyone = [dist.new_group(members) for members in ([0, 1], [2, 3], [0, 2], [1, 3])]
        mine = [group for group in everyone if group is not dist.GroupMember.NON_GROUP_MEMBER]
        self.assertEqual(len(mine), 2)
        tensors = [torch.full((1000,), float(rank)) for _ in mine]
        for work in [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, mine)]:
            work.wait()
        sums = [{0: 1, 1: 1, 2: 5, 3: 5}[rank], {0: 2, 2: 2, 1: 4, 3: 4}[rank]]
        for tensor, total in zip(tensors, sums):
            self.same(tensor, torch.full((1000,), float(total)))
        self.assertEqual(dist.get_process_group_ranks(mine[0]), [0, 1] if rank < 2 else [2, 3])
        dist.destroy_process_group(mine[0])
        dist.all_reduce(tensors[1], group=mine[1])

    @ranks.on(3)
    def test_sparse(self, rank, n):
        dense = torch.zeros(6, 2)
        dense[rank] = rank + 1.0
        dense[5] = 1.0
        sparse = dense.to_sparse()
        dist.all_reduce(sparse)
        self.same(sparse.to_dense(), torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [0, 0], [0, 0], [3.0, 3.0]]))
        weight = torch.nn.Parameter(torch.eye(2).to_sparse())
        dist.all_reduce(weight)
        self.same(weight.detach().to_dense(), 3 * torch.eye(2))
        for op, dtype, value, expected in (
            (dist.ReduceOp.AVG, torch.int64, 16777217, 16777217), (dist.ReduceOp.AVG, torch.int16, 32767, 32767),
            (dist.ReduceOp.SUM, torch.bfloat16, 256.0 if rank == 0 else 1.0, 258.0),  # rounded once
            (dist.ReduceOp.AVG, torch.float16, 2.0**-24, 2.0**-24),
        ):
            few = torch.tensor([value], dtype=dtype).to_sparse()
            dist.all_reduce(few, op)
            self.same(few.to_dense(), torch.tensor([expected], dtype=dtype))

    @ranks.on(2)
    def test_functional(self, rank, n):
        import torch.distributed._functional_collectives as functional

        group = dist.group.WORLD
        self.same(functional.all_reduce(torch.ones(3), "sum", group) + 0, torch.full((3,), 2.0))
        gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, group)
        self.same(gathered + 0, torch.tensor([0.0, 0.0, 1.0, 1.0]))
        scattered = functional.reduce_scatter_tensor(torch.arange(4.0), "sum", 0, group)
        self.same(scattered + 0, torch.arange(4.0)[2 * rank : 2 * rank + 2] * 2)
        exchanged = functional.all_to_all_single(torch.full((2,), float(rank)), [1, 1], [1, 1], group)
        self.same(exchanged + 0, torch.tensor([0.0, 1.0]))
        self.same(functional.broadcast(torch.full((2,), float(rank)), 1, group) + 0, torch.ones(2))

    @ranks.on(2)
    def test_functional_results_as_arguments(self, rank, n):
        """Results that nobody has waited for yet have no memory of their own."""
        import torch.distributed._functional_collectives as functional

        def result():
            made = functional.all_reduce(torch.full((4,), rank + 1.0), "sum", dist.group.WORLD)
            self.assertIsInstance(made, functional.AsyncCollectiveTensor)
            return made

        threes, sixes = torch.full((4,), 3.0), torch.full((4,), 6.0)
        y = result()
        dist.all_reduce(y)
        self.same(y + 0, sixes)
        y = result()
        dist.broadcast(y, 0)
        self.same(y + 0, threes)
        everyone = torch.zeros(8)
        dist.all_gather_into_tensor(everyone, result())
        self.same(everyone, torch.full((8,), 3.0))
        part = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
        dist.reduce_scatter_tensor(part, result())
        self.same(part + 0, torch.full((2,), 6.0))
        y = result()
        if rank == 0:
            dist.send(y, 1)
        else:
            dist.recv(y, 0)
        self.same(y + 0, threes)
        bits = functional.all_reduce(torch.tensor([rank]), "sum", dist.group.WORLD)
        dist.all_reduce(bits, dist.ReduceOp.BOR)
        self.same(bits + 0, torch.tensor([1]))

    @ranks.on(2)
    def test_bits_in_inference_mode(self, rank, n):
        with torch.inference_mode():
            flags, ones = torch.tensor([1 << rank]), torch.ones(4, dtype=torch.int64)
            dist.all_reduce(flags, dist.ReduceOp.BOR)
            self.same(flags, torch.tensor([3]))
            part = torch.zeros(2, dtype=torch.int64)
            dist.reduce_scatter_tensor(part, ones, dist.ReduceOp.BXOR)
            self.same(part, torch.zeros(2, dtype=torch.int64))

    @ranks.on(2)
    def test_refused_in_the_middle(self, rank, n):
        """An operation is under way when the next one of the same call is refused: its memory is not freed before it ends."""
        lane, store = dist.group.WORLD._lanes.host, dist.group.WORLD._own_store
        used, into = torch.ones(100_000), torch.zeros(200_000)
        gone = weakref.ref(used)

        def issue(comm, stream, mine=used):
            gather = tutti_torch.library.load().tuttiAllGather
            lane.check(gather(mine.data_ptr(), into.data_ptr(), mine.numel(), tutti_torch.library.FLOAT32, comm, stream))
            raise ValueError("refused")

        if rank == 1:
            store.wait(["checked"])
        with self.assertRaisesRegex(ValueError, "refused"):
            lane.launch("all_gather", [used], True, issue, [into])
        del used, issue
        if rank == 0:
            self.assertIsNotNone(gone())
            store.set("checked", "")
        dist.barrier()
        for _ in range(3000):  # the stream's thread may not have finished
            if gone() is None:
                break
            time.sleep(0.01)
        self.assertIsNone(gone())
        self.same(into, torch.ones(200_000))

    @ranks.on(2)
    def test_again_after_destruction(self, rank, n):
        for _ in range(3):
            group = dist.new_group([0, 1], timeout=timedelta(seconds=60))
            dist.barrier(group)
            dist.destroy_process_group(group)
            with self.assertRaisesRegex(RuntimeError, "destroyed"):
                group.allreduce([torch.ones(1)])

    @ranks.on(5)
    def test_deterministic(self, rank, n):
        """Groups made under torch.use_deterministic_algorithms add up in the order of ranks, those made before do not."""
        ranges = [torch.Generator().manual_seed(peer) for peer in range(n)]
        inputs = [torch.randn(20_000, generator=g) * torch.randint(1, 1 << 20, (20_000,), generator=g) for g in ranges]
        in_order = functools.reduce(torch.add, inputs)
        with mock.patch.dict(os.environ, TUTTI_ALGO="ring"):
            groups = []
            for wanted in (False, True):
                torch.use_deterministic_algorithms(wanted)
                groups.append(dist.new_group())
            torch.use_deterministic_algorithms(False)
        for group, equal in zip(groups, (False, True)):
            tensor = inputs[rank].clone()
            dist.all_reduce(tensor, group=group)
            self.assertTrue(torch.allclose(tensor, in_order, rtol=1e-3, atol=1.0))
            self.assertEqual(torch.equal(tensor, in_order), equal)

    @ranks.on(2)
    def test_wrong_arguments(self, rank, n):
        """Unsupported arguments give an error with a sentence, and the group still works."""
        with self.assertRaisesRegex(RuntimeError, "meta.*host memory"):
            dist.all_reduce(torch.ones(2, device="meta"))
        with self.assertRaisesRegex(RuntimeError, "3 elements.*5"):
            dist.all_gather_into_tensor(torch.zeros(5), torch.zeros(3))
        with self.assertRaisesRegex(RuntimeError, "1 tensors for 2 ranks"):
            dist.all_to_all([torch.zeros(1)], [torch.zeros(1)])
        with self.assertRaisesRegex(RuntimeError, "split"):
            dist.all_to_all_single(torch.zeros(3), torch.zeros(3))
        for size in (2, 7):
            with self.assertRaisesRegex(RuntimeError, f"input of {size} elements.*output has 5"):
                dist.all_gather([torch.zeros(5), torch.zeros(5)], torch.ones(size))
        for call in (
            lambda: dist.broadcast(torch.ones(2, device="meta"), 0),
            lambda: dist.reduce_scatter_tensor(torch.ones(1, device="meta"), torch.ones(2, device="meta")),
        ):
            with self.assertRaisesRegex(RuntimeError, "meta.*host memory"):
                call()
        if rank == 0:  # no other rank needs to call
            with self.assertRaisesRegex(RuntimeError, "meta.*host memory"):
                dist.broadcast(torch.ones(2, device="meta"), 0)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        self.same(tensor, torch.full((2,), 2.0))

    @ranks.on(2)
    def test_parameters_of_other_forms(self, rank, n):
        for is_async in (False, True):
            weight = torch.nn.Parameter(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
            with torch.no_grad():
                dist.broadcast(weight, 0)
                work = dist.all_reduce(weight, async_op=is_async)
                if is_async:
                    work.wait()
            self.same(weight.detach(), torch.full((2, 3, 4, 4), 2.0))
        weight = torch.nn.Parameter(torch.ones(2, 3).t())
        dist.all_reduce(weight)
        self.same(weight.detach(), torch.full((3, 2), 2.0))


if __name__ == "__main__":
    ranks.main()
