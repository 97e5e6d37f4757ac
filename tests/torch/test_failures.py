"""Ranks that die, are late or disagree: an exception that names the rank, and nobody waits for ever."""
import functools
import os
import signal
import subprocess
import sys
import time
import unittest
from datetime import timedelta
from unittest import mock

import prerequisites
import ranks

prerequisites.require()
import torch
import torch.distributed as dist
import tutti_torch


def joined(body, rank, size, path, timeout_s=120):
    ranks.init(prerequisites.BACKEND, path, rank, size, timeout_s)
    body(rank, size)


def store_after_barrier(rank, n, last):
    """The job's store, after a barrier, which the rank `last` leaves behind all others."""
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"rank {rank} has left the barrier", "")
    if rank == last:
        store.wait([f"rank {other} has left the barrier" for other in range(n)])
    return store


class Failures(unittest.TestCase):
    def run_ranks(self, size, body, dies=None, **options):
        ranks.run(functools.partial(joined, body, **options), size, joined=False, dies=dies)

    def test_dead_rank_is_named(self):
        """In a wait on the caller's thread, on the stream, in a future, and for a message."""

        def body(rank, n):
            store_after_barrier(rank, n, 1)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            works = [dist.all_reduce(torch.ones(100_000), async_op=True)]
            if rank == 0:
                works.append(dist.irecv(torch.ones(5), 1))
            for work in works:
                with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 1"):
                    work.wait()
                self.assertFalse(work.is_success())
            with self.assertRaisesRegex(Exception, "rank 1"):
                works[0].get_future().wait()
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 1"):
                dist.all_reduce(torch.ones(4))
            self.assertIn(1, dist.group.WORLD.lost_ranks())
            dist.destroy_process_group()

        self.run_ranks(3, body, dies=1)

    def test_sender_that_dies_in_the_middle(self):
        """In the middle of a message that fits the receive, or that does not, and so is received elsewhere."""

        def body(rank, n):
            dist.barrier()
            if rank == 1:
                api = tutti_torch.library.load()
                send = api.tuttiSend
                # Sends the message's header and nothing else.
                api.tuttiSend = lambda *arguments: os._exit(0) if arguments[1] == 4000 else send(*arguments)
                dist.send(torch.ones(1000), 0)
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 1"):
                dist.recv(torch.ones(elements), 1)

        for elements in (1000, 5):
            self.run_ranks(2, body, dies=1)

    def test_message_from_a_rank_that_has_left(self):
        """It came before the rank left, ahead of another that was asked for first."""

        def body(rank, n):
            if rank == 1:
                dist.send(torch.full((3,), 2.0), 0, tag=2)
                dist.send(torch.full((3,), 1.0), 0, tag=1)
                os._exit(0)
            tensor = torch.zeros(3)
            dist.recv(tensor, 1, tag=1)
            self.assertEqual(tensor.tolist(), [1, 1, 1])
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 1"):
                dist.recv(tensor, 1, tag=3)
            dist.recv(tensor, 1, tag=2)
            self.assertEqual(tensor.tolist(), [2, 2, 2])
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 1"):
                dist.recv(tensor, 1, tag=2)

        self.run_ranks(2, body, dies=1)

    def test_rank_that_never_comes(self):
        def late(rank, size, path):
            if rank == 2:
                return
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 2 of 3 never joined"):
                ranks.init(prerequisites.BACKEND, path, rank, size, 5)

        ranks.run(late, 3, joined=False)

    def test_rank_that_comes_after_the_others_gave_up(self):
        def late(rank, size, path):
            gave_up = f"{path} rank "
            if rank == 2:
                while not (os.path.exists(gave_up + "0") and os.path.exists(gave_up + "1")):
                    time.sleep(0.01)
            began = time.monotonic()
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 2 of 3 never joined"):
                ranks.init(prerequisites.BACKEND, path, rank, size, 120 if rank == 2 else 5)
            if rank == 2:
                self.assertLess(time.monotonic() - began, 60)  # the time-out is 120 s
            open(gave_up + str(rank), "w").close()

        ranks.run(late, 3, joined=False)

    def test_absent_from_an_operation(self):
        def body(rank, n):
            store = dist.distributed_c10d._get_default_store()
            if rank == 0:
                with self.assertRaisesRegex(tutti_torch.TuttiError, "timeout.*rank 1"):
                    dist.all_reduce(torch.ones(3))
                store.set("refused", "")
            else:
                store.wait(["refused"], timedelta(seconds=60))

        self.run_ranks(2, body, timeout_s=5)

    def test_different_calls(self):
        def body(rank, n):
            with self.assertRaisesRegex(tutti_torch.TuttiError, r"(?=.*count=3\b).*count=4\b"):
                dist.all_reduce(torch.ones(3 + rank))
                dist.barrier()

        self.run_ranks(2, body)

    def test_gather_against_scatter(self):
        """Both end at once; what comes later would get the older data."""

        def body(rank, n):
            mine, all_of = torch.arange(4.0) + rank, [torch.zeros(4), torch.zeros(4)]
            for _ in range(2):
                dist.scatter(mine, all_of if rank == 0 else None)
                dist.gather(mine, all_of if rank == 0 else None)
            with self.assertRaisesRegex(tutti_torch.TuttiError, r"(?=.*Scatter\(count=4, float\w*, root=0\)).* Gather\(count=4"):
                dist.scatter(mine, all_of) if rank == 0 else dist.gather(mine)
                dist.gather(mine + 1, all_of if rank == 0 else None)
                dist.barrier()

        self.run_ranks(2, body)

    def test_all_to_all_against_others(self):
        """Those that wait for the other rank, and those that do not."""

        def body(rank, n):
            x, out = torch.zeros(4), torch.zeros(4)
            other = {
                "AllReduce": lambda: dist.all_reduce(x),
                "Broadcast": lambda: dist.broadcast(x, 1),
                "Gather": lambda: dist.gather(x, [out, out] if rank == 0 else None),
            }[name]
            for _ in range(2):
                dist.all_to_all_single(out, x)
                other()
            with self.assertRaisesRegex(tutti_torch.TuttiError, f"(?=.*(AlltoAllv|all_to_all)).* {name}.count=4.* in the same order"):
                dist.all_to_all_single(out, x) if rank == 0 else other()
                dist.all_to_all_single(out, x)
                dist.all_to_all_single(out, x)
                dist.barrier()

        for name in ("AllReduce", "Broadcast", "Gather"):
            self.run_ranks(2, body)

    def test_wait_with_a_limit(self):
        def body(rank, n):
            if rank == 0:
                tensor = torch.ones(3)
                work = dist.all_reduce(tensor, async_op=True)
                with self.assertRaisesRegex(tutti_torch.TuttiError, "not finished within 0.2 s"):
                    work.wait(timedelta(seconds=0.2))
                dist.group.WORLD.monitored_barrier(timedelta(seconds=60))
                work.wait()
                self.assertEqual(tensor.tolist(), [2, 2, 2])
            else:
                dist.group.WORLD.monitored_barrier(timedelta(seconds=60))
                dist.all_reduce(torch.ones(3))
            dist.destroy_process_group()

        self.run_ranks(2, body)

    def test_barrier_with_a_limit(self):
        """As dist.barrier(timeout=...) of torch 2.12 passes it on. The barrier that took too long still counts."""

        def body(rank, n):
            options = dist.BarrierOptions()
            options.asyncOp = False
            if rank == 0:
                options.timeout = timedelta(seconds=0.2)
                with self.assertRaisesRegex(tutti_torch.TuttiError, "not finished within 0.2 s"):
                    dist.group.WORLD.barrier(options)
                options.asyncOp = True
                work = dist.group.WORLD.barrier(options)
                with self.assertRaisesRegex(tutti_torch.TuttiError, "not finished within 0.2 s"):
                    work.wait()
                dist.monitored_barrier(timeout=timedelta(seconds=60))
                work.wait(timedelta(seconds=60))
            else:
                dist.monitored_barrier(timeout=timedelta(seconds=60))
                options.timeout = timedelta(seconds=60)
                dist.group.WORLD.barrier(options)
                dist.barrier()
            dist.destroy_process_group()

        self.run_ranks(2, body)

    def test_subgroup_names_ranks_of_the_job(self):
        def body(rank, n):
            group = dist.new_group([1, 2])
            if rank == 2:
                os._exit(0)
            if rank == 1:
                with self.assertRaisesRegex(tutti_torch.TuttiError, "0 is 1, 1 is 2"):
                    dist.all_reduce(torch.ones(1), group=group)
                    dist.barrier(group)
            if rank == 0:
                dist.destroy_process_group()  # a rank that leaves without it while others still join counts as dead

        self.run_ranks(3, body, dies=2)

    def test_rank_that_dies_before_a_subgroup(self):
        """The job's group knows of the death, so nobody waits for the subgroup until its time-out."""

        def body(rank, n):
            store = store_after_barrier(rank, n, dying)
            if rank == dying:
                os._exit(0)
            if rank == 0:
                return store.wait(["refused"])
            with self.assertRaisesRegex(tutti_torch.TuttiError, rf"rank {dying - 1} died before .* {dying - 1} is {dying}"):
                dist.new_group([1, 2])
            store.set("refused", "")

        for dying in (1, 2):
            self.run_ranks(3, body, dies=dying)

    def test_survivors_all_name_the_rank_that_died_before_a_subgroup(self):
        def body(rank, n):
            store = store_after_barrier(rank, n, 3)
            if rank == 3:
                os._exit(0)
            if rank == 0:
                return store.wait(["rank 1 was refused", "rank 2 was refused"])
            time.sleep(0.3 * rank)
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 2 died before .* 2 is 3"):
                dist.new_group([1, 2, 3])
            store.set(f"rank {rank} was refused", "")

        self.run_ranks(4, body, dies=3)

    def test_survivor_that_left_is_not_called_dead(self):
        """A rank of the subgroup is gone because the job's group had failed: a rank outside it died or aborted, or it
        aborted itself."""

        def body(rank, n):
            store = store_after_barrier(rank, n, first)
            if rank == first:
                os._exit(0) if dies else dist.group.WORLD.abort()
            elif rank == 1:
                while not dist.group.WORLD.lost_ranks():
                    time.sleep(0.01)
            elif rank == 2:
                while 1 not in dist.group.WORLD.lost_ranks():
                    time.sleep(0.01)
                failure = rf"rank {first} \(.*{'died' if dies else 'called tuttiCommAbort'}.*"
                with self.assertRaisesRegex(tutti_torch.TuttiError, rf"rank 0 left the job, which had failed \(.*{failure}\), before"):
                    dist.new_group([1, 2])
                store.set("refused", "")
            else:
                store.wait(["refused"])

        for first, dies in ((3, True), (3, False), (1, False)):
            self.run_ranks(4, body, dies=first if dies else None)

    def test_end_without_destruction(self):
        """A program may forget destroy_process_group, even with operations that nobody has waited for."""

        def body(rank, n):
            for _ in range(10):
                dist.all_reduce(torch.ones(1000), async_op=True)
            import atexit

            atexit._run_exitfuncs()

        self.run_ranks(2, body)

    def test_end_amid_a_callback(self):
        """The callback's thread returns to torch's C++, which must not find the interpreter gone."""
        program = """
import time, torch, torch.distributed as dist, tutti_torch
dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
work = dist.all_reduce(torch.ones(4), async_op=True)
later = work.get_future().then(lambda _: [time.sleep(0.001) for _ in range(1000)])
work.wait()
dist.destroy_process_group()
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_again_in_the_same_store(self):
        """Messages and barriers of a group are not mistaken for those of the previous one."""

        def body(rank, n, path):
            store = dist.FileStore(path, n)
            for turn in range(2):
                dist.init_process_group("tutti", store=store, rank=rank, world_size=n, timeout=timedelta(seconds=20))
                if rank == 0:
                    time.sleep(1)  # until rank 1 looks for a message that does not exist yet
                    dist.send(torch.full((3,), float(turn)), 1)
                    time.sleep(1)  # until rank 1 waits, or is let through too early
                    store.set(f"comes to barrier {turn}", "")
                    dist.monitored_barrier()
                else:
                    tensor = torch.zeros(3)
                    dist.recv(tensor, 0)
                    self.assertEqual(tensor.tolist(), [turn] * 3)
                    dist.monitored_barrier()
                    self.assertTrue(store.check([f"comes to barrier {turn}"]))
                dist.destroy_process_group()

        ranks.run(body, 2, joined=False)

    def test_ends_in_the_order_of_creation(self):
        """On all ranks, or they would wait for each other."""
        from tutti_torch import communicator

        def body(rank, n):
            groups = [dist.group.WORLD, *(dist.new_group() for _ in range(8))]
            ended = []
            with mock.patch.object(communicator.Communicator, "close", lambda self, limit: ended.append(self)):
                communicator._at_exit()
            self.assertEqual(ended, [group._communicator for group in groups])
            dist.destroy_process_group()

        self.run_ranks(1, body)

    def test_channels_end_in_one_order(self):
        """Either channel of the pair."""
        from tutti_torch import communicator

        def body(rank, n):
            works = [dist.isend(torch.ones(1), 1 - rank), dist.irecv(torch.ones(1), 1 - rank)]
            for work in works:
                work.wait()
            channels = dist.group.WORLD._channels
            both = [channels._out[1 - rank].comm, channels._in[1 - rank].comm]  # rank 0's first is rank 1's second
            ended = []
            with mock.patch.object(communicator, "_open", dict(enumerate(both))), mock.patch.object(
                communicator.Communicator, "close", lambda self, limit: ended.append(self)
            ):
                communicator._at_exit()
            firsts = [None] * n
            dist.all_gather_object(firsts, both.index(ended[0]))
            self.assertEqual(sorted(firsts), [0, 1])
            dist.destroy_process_group()

        self.run_ranks(2, body)

    def test_send_to_a_dead_rank(self):
        """The first message to a rank, for which there is no channel yet."""

        def body(rank, n):
            store_after_barrier(rank, n, 1)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            begun = time.monotonic()
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 1 .*died"):
                dist.send(torch.ones(5), 1)
            self.assertLess(time.monotonic() - begun, 60)  # the time-out is 120 s
            dist.destroy_process_group()

        self.run_ranks(2, body, dies=1)

    def test_message_that_never_comes(self):
        def body(rank, n):
            if rank == 0:
                with self.assertRaisesRegex(tutti_torch.TuttiError, "recv from rank 1 has not finished within 6 s"):
                    dist.recv(torch.ones(3), 1)
                with self.assertRaisesRegex(tutti_torch.TuttiError, "send to rank 1|messages with rank 1"):
                    dist.send(torch.ones(3), 1)
            dist.monitored_barrier(timeout=timedelta(seconds=60))
            dist.destroy_process_group()

        self.run_ranks(2, body, timeout_s=6)


if __name__ == "__main__":
    ranks.main()
