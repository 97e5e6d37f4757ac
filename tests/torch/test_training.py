"""DDP and FSDP2 give the same results as on gloo, up to rounding."""
import functools
import unittest
from types import SimpleNamespace
from unittest import mock

import prerequisites
import ranks

prerequisites.require()
import torch
import torch._dynamo  # needed by optimizers and DDP together with FSDP: imported once instead of in each forked rank
import torch.distributed as dist
import torch.distributed.fsdp
import tutti_torch
from torch.nn.parallel import DistributedDataParallel

STEPS = 3


class Branches(torch.nn.Module):
    """One of its branches is used on some ranks only, one on none."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(20, 300)
        self.odd = torch.nn.Linear(300, 300)
        self.never = torch.nn.Linear(300, 300)
        self.norm = torch.nn.BatchNorm1d(300)
        self.last = torch.nn.Linear(300, 5)

    def forward(self, x, uses_odd=True):
        x = torch.relu(self.first(x))
        if uses_odd:
            x = self.odd(x)
        return self.last(self.norm(x))


def model(with_unused):
    torch.manual_seed(3)
    made = Branches()
    if not with_unused:
        del made.never
    return made


def batches(rank, step):
    return torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + rank))


def train(wrapped, rank, uneven=False, accumulate=False):
    """The gradients of all steps, and the final parameters."""
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    gradients = []
    for step in range(STEPS):
        optimizer.zero_grad()
        if accumulate:
            with wrapped.no_sync():
                wrapped(batches(rank, 50 + step)).square().mean().backward()
        wrapped(batches(rank, step), *([rank % 2 == 1] if uneven else [])).square().mean().backward()
        gradients += [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]
        optimizer.step()
    return gradients + [p.detach().clone() for p in wrapped.parameters()]


class Training(unittest.TestCase):
    def both(self, run):
        """run(group) on Tutti's group and on gloo's."""
        ours, theirs = run(dist.group.WORLD), run(dist.new_group(backend="gloo"))
        self.assertEqual(len(ours), len(theirs))
        for mine, other in zip(ours, theirs):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)

    @ranks.on(2, 4)
    def test_ddp(self, rank, n):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        modes = {
            "default": {},
            "small buckets": {"bucket_cap_mb": 0.1},
            "bucket view": {"gradient_as_bucket_view": True},
            "static graph": {"static_graph": True},
            "find unused": {"find_unused_parameters": True},
        }
        for name, options in modes.items():
            uneven = name == "find unused"

            def run(group, options=options, uneven=uneven):
                wrapped = DistributedDataParallel(model(uneven), process_group=group, **options)
                return train(wrapped, rank, uneven, accumulate=name == "default")

            self.both(run)
        for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):

            def run_hook(group, hook=hook):
                wrapped = DistributedDataParallel(model(False), process_group=group)
                wrapped.register_comm_hook(group, hook)
                return train(wrapped, rank)

            if hook is default_hooks.allreduce_hook:
                self.both(run_hook)
            else:
                self.assertTrue(all(bool(g.isfinite().all()) for g in run_hook(dist.group.WORLD)))

    @ranks.on(2)
    def test_compiled(self, rank, n):
        def run(group):
            wrapped = DistributedDataParallel(model(False), process_group=group)
            return train(torch.compile(wrapped, backend="aot_eager"), rank)

        self.both(run)

    @ranks.on(2)
    def test_compiled_step(self, rank, n):
        """The backward pass, and with it the hook, runs between compiled pieces."""
        for use in (tutti_torch.use_registered_buckets, lambda m: m.register_comm_hook(None, tutti_torch.quantized_hook)):
            wrapped = DistributedDataParallel(model(False))
            use(wrapped)

            @torch.compile(backend="aot_eager")
            def step(x, wrapped=wrapped):
                wrapped(x).square().mean().backward()

            for number in range(STEPS):
                wrapped.zero_grad()
                step(batches(rank, number))
            gradient = wrapped.module.first.weight.grad
            self.assertTrue(bool(gradient.any()))
            theirs = gradient.clone()
            dist.broadcast(theirs, 0)
            torch.testing.assert_close(gradient, theirs, rtol=0, atol=0)

    @ranks.on(2)
    def test_powersgd(self, rank, n):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

        def run(group):
            wrapped = DistributedDataParallel(model(False), process_group=group)
            state = powersgd.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=1)
            wrapped.register_comm_hook(state, powersgd.powerSGD_hook)
            return train(wrapped, rank)

        ours = run(dist.group.WORLD)
        shared = [parameter.clone() for parameter in ours[-4:]]
        for parameter in shared:
            dist.broadcast(parameter, 0)
        # Each rank multiplies the averaged factors itself, and the last bit depends on their memory layout.
        for mine, zero in zip(ours[-4:], shared):
            torch.testing.assert_close(mine, zero, rtol=1e-5, atol=1e-7)

    @ranks.on(2, 4)
    def test_uneven_inputs(self, rank, n):
        def run(group):
            wrapped = DistributedDataParallel(torch.nn.Linear(20, 5), process_group=group)
            with torch.no_grad():
                wrapped.module.weight.fill_(0.1)
                wrapped.module.bias.fill_(0.2)
            with wrapped.join():
                for step in range(1 + rank):
                    wrapped(batches(rank, step)).sum().backward()
            return [p.grad for p in wrapped.parameters()]

        self.both(run)

    @ranks.on(2, 4)
    def test_registered_buckets(self, rank, n):
        def run(group, **options):
            wrapped = DistributedDataParallel(model(False), process_group=group, bucket_cap_mb=0.2, **options)
            if isinstance(group, tutti_torch.TuttiProcessGroup):
                tutti_torch.use_registered_buckets(wrapped)
            return train(wrapped, rank)

        self.both(run)
        self.both(functools.partial(run, gradient_as_bucket_view=True))

    @ranks.on(2)
    def test_registered_buckets_move(self, rank, n):
        """Their memory is shared, and no registration outlives its bucket."""
        from tutti_torch.buckets import RegisteredBuckets

        state = RegisteredBuckets(dist.group.WORLD)
        wrapped = DistributedDataParallel(model(False), bucket_cap_mb=0.2, gradient_as_bucket_view=True)
        wrapped.register_comm_hook(state, RegisteredBuckets.reduce)
        train(wrapped, rank)
        self.assertGreater(len(state._buckets), 1)
        registered = {known.storage.data_ptr() for known in state._buckets.values()}
        self.assertEqual({p.grad.untyped_storage().data_ptr() for p in wrapped.parameters()}, registered)
        self.assertTrue(all(known.storage.is_shared() for known in state._buckets.values()))

    @ranks.on(2)
    def test_buckets_that_stay(self, rank, n):
        """A bucket for which there is no shared memory is averaged where it is, and told of once."""
        from tutti_torch.buckets import RegisteredBuckets

        state, buffer = RegisteredBuckets(dist.group.WORLD), torch.empty(1000)
        bucket = SimpleNamespace(buffer=lambda: buffer, index=lambda: 0, is_last=lambda: True)
        with mock.patch.object(torch.UntypedStorage, "share_memory_", side_effect=RuntimeError("no space")):
            with self.assertLogs("tutti_torch") as logs:
                for _ in range(3):
                    buffer.fill_(rank)
                    self.assertTrue(torch.equal(state.reduce(bucket).wait(), torch.full_like(buffer, 0.5)))
        self.assertEqual(len(logs.output), 1)
        self.assertIn("stays in private memory: no space", logs.output[0])

    @ranks.on(2, 3)
    def test_quantized_hook(self, rank, n):
        """The first step's averages are within the bound given by the largest gradient, and all ranks end up with the same."""
        largest = 0.0
        for peer in range(n):
            alone = model(False)
            alone(batches(peer, 0)).square().mean().backward()
            largest = max([largest, *(float(p.grad.abs().max()) for p in alone.parameters())])

        def run(state):
            wrapped = DistributedDataParallel(model(False), bucket_cap_mb=0.1)
            if state is not exact:
                wrapped.register_comm_hook(state, tutti_torch.quantized_hook)
            got = train(wrapped, rank)
            for parameter in got[-len(list(wrapped.parameters())) :]:
                shared = parameter.clone()
                dist.broadcast(shared, 0)
                self.assertTrue(torch.equal(shared, parameter))
            return got[: len(list(wrapped.parameters()))]

        exact = object()
        averages = run(exact)
        for state, part in ((None, 126), (dist.group.WORLD, 126), (tutti_torch.QuantizedState(wire="e4m3", block_elems=64), 13.5)):
            got = run(state)
            for mine, right in zip(got, averages):
                torch.testing.assert_close(mine, right, rtol=0, atol=largest / part + 1e-6)
            self.assertFalse(all(torch.equal(mine, right) for mine, right in zip(got, averages)))

    @ranks.on(2)
    def test_quantized_hook_with_error_feedback(self, rank, n):
        """The mean of many steps with the same gradients has a smaller error than the first step."""
        wrapped = DistributedDataParallel(torch.nn.Linear(20, 60))
        wrapped.register_comm_hook(tutti_torch.QuantizedState(wire="e4m3", error_feedback=True), tutti_torch.quantized_hook)
        right = sum(batches(peer, 0).sum(0) for peer in range(n)) / n * torch.linspace(1, 2, 60)[:, None]
        total, misses = torch.zeros_like(right), []
        for step in range(1, 31):
            wrapped.zero_grad()
            (wrapped(batches(rank, 0)).sum(0) * torch.linspace(1, 2, 60)).sum().backward()
            # DDP makes new buckets after the first step, and the error kept until then is lost.
            total += wrapped.module.weight.grad
            misses.append(float((total / step - right).abs().max()))
        self.assertGreater(misses[0], 1e-3)
        self.assertLess(misses[-1], misses[0] / 4)

    @ranks.on(2)
    def test_quantized_hook_leaves_doubles_exact_and_refuses_others(self, rank, n):
        wrapped = DistributedDataParallel(torch.nn.Linear(20, 6).double())
        wrapped.register_comm_hook(None, tutti_torch.quantized_hook)
        wrapped(batches(rank, 0).double()).sum().backward()
        mean = sum(batches(peer, 0).double().sum(0) for peer in range(n)) / n
        torch.testing.assert_close(wrapped.module.weight.grad, mean.expand(6, 20))
        with self.assertRaisesRegex(tutti_torch.TuttiError, "'int4' is none of int8, e4m3"):
            tutti_torch.QuantizedState(wire="int4")
        with self.assertRaisesRegex(tutti_torch.TuttiError, "is ProcessGroup, not Tutti's"):
            tutti_torch.QuantizedState(dist.new_group(backend="gloo"))

    @ranks.on(2)
    def test_fsdp(self, rank, n):
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        def run(group):
            sharded = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 7))
            torch.manual_seed(5)
            for parameter in sharded.parameters():
                torch.nn.init.normal_(parameter, std=0.2)
            mesh = DeviceMesh.from_group(group, "cpu")
            for layer in (sharded[0], sharded[2], sharded):
                fully_shard(layer, mesh=mesh)
            return [value.to_local() for value in train(sharded, rank)]

        self.both(run)

    @ranks.on(4)
    def test_mesh_of_two_dimensions(self, rank, n):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        torch.manual_seed(5)
        plain = torch.nn.Linear(20, 6)
        sharded = torch.nn.Linear(20, 6)
        sharded.load_state_dict(plain.state_dict())
        fully_shard(sharded, mesh=mesh)
        sharded(batches(rank, 0)).square().sum().backward()
        for peer in range(n):
            plain(batches(peer, 0)).square().sum().backward()
        torch.testing.assert_close(sharded.weight.grad.full_tensor(), plain.weight.grad / n)


if __name__ == "__main__":
    ranks.main("numpy")
