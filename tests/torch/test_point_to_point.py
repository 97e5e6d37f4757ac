"""send and recv: any order, any tag, any size, from any rank."""
import os
import threading
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


class PointToPoint(unittest.TestCase):
    def same(self, actual, expected):
        self.assertTrue(torch.equal(actual, expected), f"{actual} is not {expected}")

    @ranks.on(2, 3)
    def test_everybody_sends_first(self, rank, n):
        """Large messages in both directions at once; the sends come before the receives."""
        size = 1_000_000
        sends = [dist.isend(torch.full((size,), float(10 * rank + p)), p) for p in range(n) if p != rank]
        for peer in range(n):
            if peer != rank:
                tensor = torch.zeros(size)
                self.assertEqual(dist.recv(tensor, peer), peer)
                self.same(tensor, torch.full((size,), float(10 * peer + rank)))
        for send in sends:
            send.wait()

    @ranks.on(2)
    def test_tags_overtake_each_other(self, rank, n):
        tags, sizes = [5, 1, 3, 1], [4, 0, 70_000, 9]
        if rank == 0:
            works = [dist.isend(torch.full((s,), float(i)), 1, tag=t) for i, (t, s) in enumerate(zip(tags, sizes))]
            for work in works:
                work.wait()
        else:
            for i in (2, 1, 3, 0):
                tensor = torch.zeros(sizes[i])
                dist.recv(tensor, 0, tag=tags[i])
                self.same(tensor, torch.full((sizes[i],), float(i)))

    @ranks.on(4)
    def test_from_anybody(self, rank, n):
        if rank == 0:
            seen = []
            for _ in range(2 * (n - 1)):
                tensor = torch.zeros(3)
                source = dist.recv(tensor)
                self.same(tensor, torch.full((3,), float(source)))
                seen.append(source)
            self.assertEqual(sorted(seen), [1, 1, 2, 2, 3, 3])
        else:
            for _ in range(2):
                dist.send(torch.full((3,), float(rank)), 0)
        dist.barrier()

    @ranks.on(3)
    def test_batch_in_a_ring(self, rank, n):
        right, left = (rank + 1) % n, (rank - 1) % n
        got = torch.zeros(5, 2).t()
        batch = [dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.isend, torch.full((2, 5), float(rank)), right)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        self.same(got, torch.full((2, 5), float(left)))

    @ranks.on(2)
    def test_between_collectives(self, rank, n):
        """Messages and collectives of one group do not wait for each other."""
        tensor = torch.zeros(2)
        work = dist.isend(torch.ones(2), 1) if rank == 0 else dist.irecv(tensor, 0)
        total = torch.ones(2)
        dist.all_reduce(total)
        work.wait()
        self.same(tensor, torch.full((2,), float(rank)))

    @ranks.on(2)
    def test_wrong_size_and_peer(self, rank, n):
        if rank == 0:
            dist.send(torch.ones(4), 1)
            dist.send(torch.full((2,), 7.0), 1)
        else:
            with self.assertRaisesRegex(RuntimeError, "sent 16 bytes.*has 8"):
                dist.recv(torch.zeros(2), 0)
            tensor = torch.zeros(2)
            dist.recv(tensor, 0)
            self.same(tensor, torch.full((2,), 7.0))
        with self.assertRaisesRegex(RuntimeError, "cannot send to"):
            dist.group.WORLD.send([torch.ones(1)], 9, 0)

    @ranks.on(2)
    def test_objects(self, rank, n):
        if rank == 0:
            dist.send_object_list([{"a": 1}, "b"], dst=1)
        else:
            got = [None, None]
            dist.recv_object_list(got, src=0)
            self.assertEqual(got, [{"a": 1}, "b"])

    def test_receives_keep_their_order(self):
        """R3 is asked for as soon as R1 is there, before the inbox has looked at R2 again."""
        from tutti_torch.point_to_point import Inbox, Receive
        from tutti_torch.work import TuttiWork

        inbox = object.__new__(Inbox)  # without a thread
        inbox.peer, inbox.error, inbox._changed = 1, None, threading.Condition()
        inbox._posted, inbox._kept, inbox._closed = [], [], False
        r1, r2, r3 = (Receive(t, t, 5, TuttiWork([t]).begin(), 0) for t in (torch.zeros(1) for _ in range(3)))
        finish = r1.finish
        r1.finish = lambda *arguments: (finish(*arguments), post(r3))

        def post(receive):
            receive.inboxes = [inbox]
            with inbox._changed:
                inbox.post(receive)

        def message(value):
            def receive_into(data):
                data.copy_(torch.tensor([value]).view(data.dtype))
            return receive_into

        def first(data):
            post(r1)
            post(r2)
            message(1.0)(data)

        inbox._take_message(5, 4, first)
        inbox._take_message(5, 4, message(2.0))
        inbox._take_message(5, 4, message(3.0))
        self.assertEqual([r.tensor.item() for r in (r1, r2, r3)], [1, 2, 3])

    def test_from_those_that_have_not_left(self):
        """Rank 1 leaves in good order, which breaks the group; then rank 2 sends its first message."""
        from tutti_torch.communicator import Communicator, _at_exit

        def body(rank, n, path):
            ranks.init(prerequisites.BACKEND, path, rank, n)
            store, tensor = dist.distributed_c10d._get_default_store(), torch.zeros(3)
            if rank == 1:
                dist.send(torch.full((3,), 1.0), 0)
                store.wait(["rank 1 is heard"])
                with mock.patch.object(Communicator.close, "__defaults__", (1.0,)):
                    leave()
            elif rank == 0:
                self.assertEqual(dist.recv(tensor), 1)
                store.set("rank 1 is heard", "")
                work = dist.irecv(tensor)
                self.until(lambda: dist.group.WORLD._channels._in[1].error is not None)
                store.set("rank 1 has left", "")
                work.wait()
                self.assertEqual((work.source_rank(), tensor.tolist()), (2, [2, 2, 2]))
                work = dist.irecv(tensor)  # posted for rank 2 alone
                store.set("posted", "")
                work.wait()
                self.assertEqual((work.source_rank(), tensor.tolist()), (2, [3, 3, 3]))
                store.set("rank 2 is heard", "")
            else:
                store.wait(["rank 1 has left"])
                dist.send(torch.full((3,), 2.0), 0)
                store.wait(["posted"])
                dist.send(torch.full((3,), 3.0), 0)
                store.wait(["rank 2 is heard"])

        for leave in (_at_exit, dist.destroy_process_group):
            ranks.run(body, 3, joined=False)

    @ranks.on(3)
    def test_first_message_between_those_that_have_not_left(self, rank, n):
        from tutti_torch.communicator import _at_exit

        store, tensor = dist.distributed_c10d._get_default_store(), torch.full((3,), float(rank))
        if rank == 2:
            _at_exit()
        else:
            self.until(lambda: 2 in dist.group.WORLD.lost_ranks())
            dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
            self.assertEqual(tensor.tolist(), [0, 0, 0])
            with self.assertRaisesRegex(RuntimeError, "rank 2 .*its program has ended"):
                dist.send(tensor, 2)
        store.set(f"{rank} is done", "")
        store.wait([f"{other} is done" for other in range(n)])

    def until(self, condition):
        for _ in range(6000):
            if condition():
                return
            time.sleep(0.01)
        self.fail("this has not come true for a minute")

    def test_from_several_inboxes(self):
        """Some of whose ranks are gone."""
        from tutti_torch.point_to_point import Channels, Inbox, Receive
        from tutti_torch.work import TuttiWork

        channels = Channels(None, 0, 1, "", lambda peer: None)
        for peer in (1, 2, 3):
            inbox = channels._in[peer] = object.__new__(Inbox)  # without a thread
            inbox.peer, inbox.error, inbox._changed = peer, None, threading.Condition(channels.guard)
            inbox._posted, inbox._kept, inbox._closed = [], [], False

        def receive():
            tensor = torch.zeros(1)
            made = Receive(tensor, tensor, 5, TuttiWork([tensor]).begin(), 0)
            channels.receive(made, [1, 2, 3])
            return made.work

        left = RuntimeError("rank 1 (host a, pid 1) called tuttiCommAbort (its program has ended)")
        early = receive()
        channels._in[1]._fail(left)
        channels._in[2]._kept.append((5, torch.tensor([7.0]).view(torch.uint8)))
        late = receive()
        self.assertEqual((late.source_rank(), late.result()[0].item()), (2, 7))
        self.assertFalse(early.is_completed())
        channels._in[2]._fail(left)
        self.assertFalse(early.is_completed())
        self.assertEqual(channels._in[1]._posted + channels._in[2]._posted, [])
        other = receive()
        died = RuntimeError("rank 3 (host a, pid 3) died")
        channels._in[3]._fail(died)
        for work in (early, other, receive()):
            self.assertIs(work.exception(), died)
        channels._in[3].error = left
        self.assertIs(receive().exception(), left)

    def test_from_anybody_with_a_dead_rank(self):
        """An error names it, whoever else could send."""

        def body(rank, n, path):
            ranks.init(prerequisites.BACKEND, path, rank, n)
            store = dist.distributed_c10d._get_default_store()
            store.set(f"joined {rank}", "")
            store.wait([f"joined {other}" for other in range(n)])
            if rank == 1:
                os._exit(0)
            if rank == 0:
                with self.assertRaisesRegex(RuntimeError, "rank 1 .*died"):
                    dist.recv(torch.zeros(3))
                store.set("refused", "")
            store.wait(["refused"])

        ranks.run(body, 3, joined=False, dies=1)

    @ranks.on(2)
    def test_memory(self, rank, n):
        """A sent or received tensor is released to its caller, even the last one."""
        tensor = torch.ones(1000)
        gone = weakref.ref(tensor)
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        del tensor
        self.expect_gone([gone])

    def expect_gone(self, tensors):
        for _ in range(3000):  # a channel's thread may not have finished
            if all(tensor() is None for tensor in tensors):
                break
            time.sleep(0.01)
        self.assertEqual([tensor() for tensor in tensors], [None] * len(tensors))

    @ranks.on(3)
    def test_memory_of_receives_from_anybody(self, rank, n):
        """They were posted for rank 2 as well, which sends once and then stays silent."""
        if rank == 0:
            seen = []
            for _ in range(12):
                tensor = torch.zeros(1000)
                seen.append(weakref.ref(tensor))
                dist.recv(tensor)
                del tensor
            self.expect_gone(seen)
        else:
            for _ in range(11 if rank == 1 else 1):
                dist.send(torch.ones(1000), 0)
        dist.barrier()

    @ranks.on(2)
    def test_in_inference_mode(self, rank, n):
        """Other threads write to tensors that only their own thread may write to."""
        with torch.inference_mode():
            sent, tensor = torch.arange(6.0).view(2, 3), torch.zeros(3, 2).t()
            if rank == 0:
                dist.send(sent, 1)
            else:
                dist.recv(tensor, 0)
                self.same(tensor, sent)
            total = torch.ones(3, 2).t()
            dist.all_reduce(total, async_op=True).wait()
            self.same(total, torch.full((2, 3), 2.0))

    @ranks.on(2)
    def test_after_the_end_of_the_group(self, rank, n):
        """Neither an open channel nor a new one takes messages any more: no thread would ever send them."""
        group = dist.new_group(timeout=timedelta(seconds=60))
        if rank == 0:
            group.send([torch.ones(2)], 1, 0).wait()
        else:
            group.recv([torch.ones(2)], 0, 0).wait()
        dist.barrier()
        group.abort()
        for peer in (1 - rank, 1 - rank):
            begun = time.monotonic()
            with self.assertRaisesRegex(RuntimeError, "destroyed|abort"):
                group.send([torch.ones(2)], peer, 0).wait()
            self.assertLess(time.monotonic() - begun, 20)
        dist.barrier()

    def test_a_copy_that_fails(self):
        """A failing thread's error becomes that of the receive."""
        from tutti_torch.point_to_point import Receive
        from tutti_torch.work import TuttiWork

        tensor = mock.Mock()
        tensor.is_inference.return_value = False
        tensor.detach.side_effect = ValueError("no")
        receive = Receive(tensor, torch.zeros(2), 0, TuttiWork([]).begin(), 0)
        receive.finish(1, 8)
        self.assertIsInstance(receive.work.exception(), ValueError)


if __name__ == "__main__":
    ranks.main()
