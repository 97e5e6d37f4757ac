"""Every form in which torch's type stubs (_distributed_c10d.pyi) let a process group be called."""
import unittest
from datetime import timedelta

import prerequisites
import ranks

prerequisites.require()
import torch
import torch.distributed as dist
import tutti_torch
from torch._C import _distributed_c10d as c10d

LIMIT = timedelta(seconds=60)
MAX = dist.ReduceOp.MAX


def options(kind, **values):
    made = kind()
    for name, value in values.items():
        setattr(made, name, value)
    return made


class Forms(unittest.TestCase):
    def check(self, calls, make, result, expected):
        """Each of the calls, with what make() gives it, waited for; result() of that is then as expected."""
        for i, call in enumerate(calls):
            given = make()
            call(*given).wait()
            self.assertEqual([each.tolist() for each in result(*given)], expected, f"form {i}")

    @ranks.on(3)
    def test_of_one_tensor(self, rank, n):
        g = dist.group.WORLD

        def make():
            return (torch.full((2,), rank + 1.0),)

        def itself(t):
            return [t]

        self.check(
            [
                lambda t: g.broadcast([t]),
                lambda t: g.broadcast([t], c10d.BroadcastOptions()),
                lambda t: g.broadcast(tensors=[t], opts=c10d.BroadcastOptions()),
                lambda t: g.broadcast(t, 0),
                lambda t: g.broadcast(t, 0, LIMIT),
                lambda t: g.broadcast(t, root=0, timeout=LIMIT),
                lambda t: g.broadcast(root=0, tensor=t),
            ],
            *(make, itself, [[1, 1]]),
        )
        self.check([lambda t: g.broadcast(t, 2), lambda t: g.broadcast(tensor=t, root=2)], make, itself, [[3, 3]])
        self.check(
            [
                lambda t: g.allreduce([t]),
                lambda t: g.allreduce([t], c10d.AllreduceOptions()),
                lambda t: g.allreduce([t], opts=options(c10d.AllreduceOptions, asyncOp=False)),
                lambda t: g.allreduce([t], dist.ReduceOp.SUM),
                lambda t: g.allreduce([t], op=dist.ReduceOp.SUM, timeout=LIMIT),
                lambda t: g.allreduce(tensors=[t], timeout=LIMIT),
                lambda t: g.allreduce(t),
                lambda t: g.allreduce(t, dist.ReduceOp.SUM, LIMIT),
                lambda t: g.allreduce(tensor=t, timeout=LIMIT),
                lambda t: g.allreduce_coalesced([t]),
                lambda t: g.allreduce_coalesced(tensors=[t], opts=c10d.AllreduceCoalescedOptions()),
            ],
            *(make, itself, [[6, 6]]),
        )
        self.check(
            [
                lambda t: g.allreduce([t], options(c10d.AllreduceOptions, reduceOp=MAX)),
                lambda t: g.allreduce([t], MAX, LIMIT),
                lambda t: g.allreduce(t, MAX),
                lambda t: g.allreduce(t, op=MAX, timeout=LIMIT),
                lambda t: g.allreduce(t, op=dist.ReduceOp(MAX)),
            ],
            *(make, itself, [[3, 3]]),
        )
        mine = [rank + 1.0] * 2
        self.check(
            [
                lambda t: g.reduce([t]),
                lambda t: g.reduce([t], opts=c10d.ReduceOptions()),
                lambda t: g.reduce(t, 0),
                lambda t: g.reduce(t, 0, dist.ReduceOp.SUM, LIMIT),
                lambda t: g.reduce(tensor=t, root=0),
            ],
            *(make, lambda t: [t] if rank == 0 else [], [[6, 6]] if rank == 0 else []),
        )
        self.check(
            [
                lambda t: g.reduce([t], options(c10d.ReduceOptions, rootRank=1, reduceOp=MAX)),
                lambda t: g.reduce(t, 1, MAX),
                lambda t: g.reduce(t, root=1, op=MAX, timeout=LIMIT),
            ],
            *(make, lambda t: [t] if rank == 1 else [], [[3, 3]] if rank == 1 else []),
        )
        self.check([lambda t: g.send([t], dstRank=1, tag=2) if rank == 0 else g.recv([t], srcRank=0, tag=2)] * (rank < 2),
                   make, itself, [[1, 1]])
        self.check([lambda t: g.send([t], 1, 3) if rank == 0 else g.recv_anysource([t], 3)] * (rank < 2),
                   make, itself, [[1, 1]])
        self.assertEqual(make()[0].tolist(), mine)

    @ranks.on(3)
    def test_gathering(self, rank, n):
        g = dist.group.WORLD

        def make():
            return [torch.zeros(1) for _ in range(n)], torch.full((1,), float(rank))

        everyone = [[float(peer)] for peer in range(n)]
        self.check(
            [
                lambda out, t: g.allgather([out], [t]),
                lambda out, t: g.allgather([out], [t], c10d.AllgatherOptions()),
                lambda out, t: g.allgather(input_tensors=[t], output_tensors=[out], opts=c10d.AllgatherOptions()),
                lambda out, t: g.allgather(out, t),
                lambda out, t: g.allgather(out, t, LIMIT),
                lambda out, t: g.allgather(input_tensor=t, output_tensors=out, timeout=LIMIT),
                lambda out, t: g.allgather_coalesced([[each] for each in out], [t]),
                lambda out, t: g.allgather_coalesced(output_lists=[[each] for each in out], input_list=[t]),
            ],
            *(make, lambda out, t: out, everyone),
        )

        def make_whole():
            return torch.zeros(n), torch.full((1,), float(rank))

        singles = [g._allgather_base, g.all_gather_single]
        several = [g.all_gather_single_coalesced, g.allgather_into_tensor_coalesced]
        self.check(
            [
                *(lambda out, t, f=f: f(out, t) for f in singles),
                *(lambda out, t, f=f: f(out, t, options(c10d.AllgatherOptions, asyncOp=False)) for f in singles),
                *(lambda out, t, f=f: f(input=t, output=out, opts=c10d.AllgatherOptions()) for f in singles),
                *(lambda out, t, f=f: f([out], [t]) for f in several),
                *(lambda out, t, f=f: f(input_list=[t], output_lists=[out], opts=c10d.AllgatherOptions()) for f in several),
            ],
            *(make_whole, lambda out, t: [out], [[0, 1, 2]]),
        )
        for root in range(n):
            opts = options(c10d.GatherOptions, rootRank=root)
            is_root = rank == root
            self.check(
                [
                    lambda out, t: g.gather([out] if is_root else [], [t], opts),
                    lambda out, t: g.gather(input_tensors=[t], output_tensors=[out] if is_root else [], opts=opts),
                    lambda out, t: g.gather(out if is_root else [], t, root),
                    lambda out, t: g.gather(out if is_root else [], t, root, LIMIT),
                    lambda out, t: g.gather(out if is_root else [], t, root=root, timeout=LIMIT),
                    lambda out, t: g.gather(input_tensor=t, output_tensors=out if is_root else [], root=root),
                    *([lambda out, t: g.gather([out] if is_root else [], [t])] if root == 0 else []),
                ],
                *(make, lambda out, t: out if is_root else [], everyone if is_root else []),
            )

    @ranks.on(3)
    def test_scattering(self, rank, n):
        g = dist.group.WORLD

        def make():
            return torch.zeros(1), [torch.full((1,), 10.0 * rank + peer) for peer in range(n)]

        for root in range(n):
            opts = options(c10d.ScatterOptions, rootRank=root)
            is_root = rank == root
            self.check(
                [
                    lambda t, all_of: g.scatter([t], [all_of] if is_root else [], opts),
                    lambda t, all_of: g.scatter(input_tensors=[all_of] if is_root else [], output_tensors=[t], opts=opts),
                    lambda t, all_of: g.scatter(t, all_of if is_root else [], root),
                    lambda t, all_of: g.scatter(t, all_of if is_root else [], root, LIMIT),
                    lambda t, all_of: g.scatter(t, all_of if is_root else [], root=root, timeout=LIMIT),
                    lambda t, all_of: g.scatter(input_tensors=all_of if is_root else [], output_tensor=t, root=root),
                    *([lambda t, all_of: g.scatter([t], [all_of] if is_root else [])] if root == 0 else []),
                ],
                *(make, lambda t, all_of: [t], [[10.0 * root + rank]]),
            )
        self.check(
            [
                lambda t, all_of: g.reduce_scatter([t], [all_of]),
                lambda t, all_of: g.reduce_scatter([t], [all_of], c10d.ReduceScatterOptions()),
                lambda t, all_of: g.reduce_scatter(input_tensors=[all_of], output_tensors=[t], opts=c10d.ReduceScatterOptions()),
                lambda t, all_of: g.reduce_scatter(t, all_of),
                lambda t, all_of: g.reduce_scatter(t, all_of, dist.ReduceOp.SUM, LIMIT),
                lambda t, all_of: g.reduce_scatter(output_tensors=t, input_tensor=all_of, timeout=LIMIT),
            ],
            *(make, lambda t, all_of: [t], [[30.0 + 3 * rank]]),
        )
        self.check(
            [
                lambda t, all_of: g.reduce_scatter([t], [all_of], options(c10d.ReduceScatterOptions, reduceOp=MAX)),
                lambda t, all_of: g.reduce_scatter(t, all_of, op=MAX, timeout=LIMIT),
            ],
            *(make, lambda t, all_of: [t], [[20.0 + rank]]),
        )
        singles = [g._reduce_scatter_base, g.reduce_scatter_single]
        several = [g.reduce_scatter_single_coalesced, g.reduce_scatter_tensor_coalesced]
        none = c10d.ReduceScatterOptions
        self.check(
            [
                *(lambda t, s, f=f: f(t, s) for f in singles),
                *(lambda t, s, f=f: f(t, s, options(none, asyncOp=False)) for f in singles),
                *(lambda t, s, f=f: f(inputTensor=s, outputTensor=t, opts=None) for f in singles),
                *(lambda t, s, f=f: f([t], [s]) for f in several),
                *(lambda t, s, f=f: f(inputTensors=[s], outputTensors=[t], opts=none()) for f in several),
            ],
            *(lambda: (torch.zeros(1), torch.cat(make()[1])), lambda t, s: [t], [[30.0 + 3 * rank]]),
        )

    @ranks.on(3)
    def test_all_to_all(self, rank, n):
        g = dist.group.WORLD

        def make():
            return [torch.zeros(1) for _ in range(n)], [torch.full((1,), 10.0 * rank + peer) for peer in range(n)]

        got = [[10.0 * peer + rank] for peer in range(n)]
        self.check(
            [
                lambda out, s: g.alltoall(out, s),
                lambda out, s: g.alltoall(out, s, c10d.AllToAllOptions()),
                lambda out, s: g.alltoall(out, s, LIMIT),
                lambda out, s: g.alltoall(input_tensor=s, output_tensor=out, opts=c10d.AllToAllOptions()),
                lambda out, s: g.alltoall(input=s, output=out, timeout=LIMIT),
            ],
            *(make, lambda out, s: out, got),
        )
        splits, counts = [1] * n, torch.ones(n, dtype=torch.int64)
        named = {"input_split_sizes": splits, "output_split_sizes": splits}
        calls = [
            *(lambda out, s, f=f: f(out, s, splits, splits) for f in (g.alltoall_base, g.all_to_all_single)),
            *(lambda out, s, f=f: f(out, s, [], [], c10d.AllToAllOptions()) for f in (g.alltoall_base, g.all_to_all_single)),
            *(lambda out, s, f=f: f(out, s, [], splits, LIMIT) for f in (g.alltoall_base, g.all_to_all_single)),
            lambda out, s: g.alltoall_base(input_tensor=s, output_tensor=out, **named, opts=c10d.AllToAllOptions()),
            lambda out, s: g.alltoall_base(input=s, output=out, timeout=LIMIT, **named),
            lambda out, s: g.alltoall_base(out, s, counts.numpy(), counts.numpy(), c10d.AllToAllOptions()),
            lambda out, s: dist.all_to_all_single(out, s, counts, counts, async_op=True),
        ]
        self.check(calls, lambda: (torch.zeros(n), torch.cat(make()[1])), lambda out, s: [out], [sum(got, [])])

    @ranks.on(2)
    def test_barrier_and_limits(self, rank, n):
        """A time-out limits wait(); the operation goes on."""
        g = dist.group.WORLD
        for work in (g.barrier(), g.barrier(c10d.BarrierOptions()), g.barrier(opts=c10d.BarrierOptions()), g.barrier(LIMIT),
                     g.barrier(timeout=LIMIT)):
            work.wait()
        brief, tensor = timedelta(seconds=0.2), torch.ones(2)
        for call in (lambda limit: g.barrier(timeout=limit), lambda limit: g.allreduce(tensor, timeout=limit),
                     lambda limit: g.allreduce([tensor], options(c10d.AllreduceOptions, timeout=limit))):
            work = call(brief) if rank == 0 else None
            if rank == 0:
                with self.assertRaisesRegex(tutti_torch.TuttiError, "not finished within 0.2 s"):
                    work.wait()
            g.monitored_barrier(LIMIT)
            (work or call(LIMIT)).wait(LIMIT)
        self.assertEqual(tensor.tolist(), [4, 4])

    @ranks.on(2)
    def test_compared(self, rank, n):
        """The calls are compared in every form."""
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        g, tensor = dist.new_group(), torch.ones(2)
        for call in (lambda t: g.allreduce(tensor=t, timeout=LIMIT), lambda t: g.allreduce(t),
                     lambda t: g.scatter(input_tensors=[t, t] if rank == 0 else [], output_tensor=t, root=0),
                     lambda t: g.gather(input_tensor=t, output_tensors=[t, t] if rank == 0 else [], root=0)):
            call(tensor).wait()
            with self.assertRaisesRegex(tutti_torch.TuttiError, r"rank 0: \w+ of float32\[1\]; rank 1: \w+ of float32\[2\]"):
                call(torch.ones(1 + rank))
        dist.set_debug_level(dist.DebugLevel.OFF)

    @ranks.on(2)
    def test_wrong(self, rank, n):
        """The error says what is wrong, and the group still works."""
        g, tensor = dist.group.WORLD, torch.ones(2)
        with self.assertRaisesRegex(tutti_torch.TuttiError, "all_reduce: 2 tensors were given"):
            g.allreduce([tensor, tensor])
        with self.assertRaisesRegex(tutti_torch.TuttiError, "str where a tensor was expected"):
            g.allgather(["x", tensor], tensor)
        with self.assertRaisesRegex(TypeError, "missing 1 required positional argument"):
            g.gather([tensor])
        g.allreduce(tensor).wait()
        self.assertEqual(tensor.tolist(), [2, 2])


if __name__ == "__main__":
    ranks.main()
