"""monitored_barrier: ranks that are late, dead, or busy with messages, and groups that are aborted."""
import os
import signal
import threading
import time
import unittest
from datetime import timedelta
from unittest import mock

import prerequisites
import ranks

prerequisites.require()
import test_failures
import torch
import torch.distributed as dist
import tutti_torch
from tutti_torch.monitored_barrier import monitored_barrier


class MonitoredBarrier(unittest.TestCase):
    run_ranks = test_failures.Failures.run_ranks

    def test_late_ranks(self):
        def body(rank, n):
            dist.monitored_barrier()
            if rank in (0, 1):
                with self.assertRaisesRegex(tutti_torch.TuttiError, "Ranks 2, 3 failed to pass monitoredBarrier"):
                    dist.monitored_barrier(timeout=timedelta(seconds=5), wait_all_ranks=True)
            # The group still works.
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            self.assertEqual(tensor.item(), n)
            dist.destroy_process_group()

        self.run_ranks(4, body)

    def test_dead_rank(self):
        """Nobody waits for it, be it rank 0 or another one."""

        def body(rank, n):
            store = test_failures.store_after_barrier(rank, n, dying)
            if rank == dying:
                os.kill(os.getpid(), signal.SIGKILL)
            sentence = f"rank {dying}.* died"
            if rank == 0:
                sentence = r"Rank 1 failed to pass monitoredBarrier \(rank 1 died or left the group\)"
            with self.assertRaisesRegex(tutti_torch.TuttiError, sentence) as caught:
                dist.monitored_barrier()
            if 0 in (rank, dying):
                self.assertEqual(caught.exception.code, tutti_torch.library.REMOTE_ERROR)
            store.set(f"rank {rank} was refused", "")
            store.wait([f"rank {other} was refused" for other in range(n) if other != dying])

        for dying in (1, 0):
            self.run_ranks(3, body, dies=dying)

    def test_aborted_group(self):
        """Another thread aborts it while the barrier waits for a rank that does not come."""

        def body(rank, n):
            store = dist.distributed_c10d._get_default_store()
            store.set(f"made{rank}", "")
            store.wait([f"made{other}" for other in range(n)])  # an abort ends others' creation
            if rank == waits:
                group = dist.group.WORLD
                lost = group._communicator.lost_ranks
                aborting = threading.Thread(target=group.abort)

                def looks(size):
                    if aborting.ident is None:
                        aborting.start()
                    return lost(size)

                with mock.patch.object(group._communicator, "lost_ranks", looks), self.assertRaisesRegex(
                    tutti_torch.TuttiError, "^the group was destroyed"
                ):
                    dist.monitored_barrier()
                aborting.join()
                store.set("aborted", "")
            store.wait(["aborted"])

        for waits in (0, 1):
            self.run_ranks(2, body)

    def test_without_a_store(self):
        store = mock.Mock()
        store.check.side_effect = RuntimeError("the connection was reset")
        with self.assertRaises(tutti_torch.TuttiError) as caught:
            monitored_barrier(store, 1, 2, 0, timedelta(seconds=60), False, lambda: [])
        self.assertIn("reset", str(caught.exception.__cause__))

    def test_leaves_one_key(self):
        """However often it was called."""
        store = dist.HashStore()

        def body(rank):
            for number in range(5):
                monitored_barrier(store, rank, 3, number, timedelta(seconds=60), False, lambda: [])

        others = [threading.Thread(target=body, args=(rank,)) for rank in (1, 2)]
        for other in others:
            other.start()
        body(0)
        for other in others:
            other.join()
        self.assertEqual(store.num_keys(), 1)

    def test_beside_messages(self):
        """Rank 1 comes once its message is there. The channel for the message is made through the store, whose one
        connection (TCPStore's; torchrun provides it) is blocked for all threads while one of them waits in it."""

        def body(rank, n, path):
            files = dist.FileStore(path, n)
            if rank == 0:
                store = dist.TCPStore("localhost", 0, n, True, wait_for_workers=False)
                files.set("port", str(store.port))
            else:
                store = dist.TCPStore("localhost", int(files.get("port")), n, False, wait_for_workers=False)
            dist.init_process_group("tutti", store=store, rank=rank, world_size=n, timeout=timedelta(seconds=60))
            tensor = torch.ones(3)
            if rank == 0:
                work = dist.irecv(tensor, 1)
                dist.monitored_barrier(timeout=timedelta(seconds=20))
                work.wait()
                self.assertEqual(tensor.tolist(), [2, 2, 2])
            else:
                time.sleep(1)  # until rank 0 waits
                dist.send(2 * tensor, 0)
                dist.monitored_barrier(timeout=timedelta(seconds=20))
            dist.destroy_process_group()

        ranks.run(body, 2, joined=False)


if __name__ == "__main__":
    ranks.main()
