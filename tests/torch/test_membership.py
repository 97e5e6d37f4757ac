"""torch's calls for groups whose ranks come and go: abort, and _reconfigure with the ranks that are there."""
import os
import signal
import unittest
from datetime import timedelta
from types import SimpleNamespace

import prerequisites
import ranks

prerequisites.require()
import torch
import torch.distributed as dist
import tutti_torch


def meet(group, store, generation, members, rank, limit=timedelta(seconds=120)):
    """Calls it like torch.distributed._reconfigure, which torch has from 2.15 on."""
    store.set(f"handle/{generation}/{rank}", group.get_reconfigure_handle())
    handles = [store.get(f"handle/{generation}/{member}").decode() for member in members]
    if hasattr(dist.distributed_c10d, "_reconfigure"):
        dist.distributed_c10d._reconfigure(uuid=generation, handles=handles, group=group, timeout=limit).wait()
    else:
        group.reconfigure(SimpleNamespace(uuid=generation, handles=handles, timeout=limit, hints={})).wait()


class Membership(unittest.TestCase):
    def check(self, group, rank, members):
        self.assertEqual((group.rank(), group.size()), (members.index(rank), len(members)))
        tensor = torch.tensor([rank + 1.0])
        group.allreduce([tensor]).wait()
        self.assertEqual(tensor.item(), sum(members) + len(members))
        tutti_torch.all_reduce_(tensor, "max", group)
        if len(members) > 1:
            # Messages go between the current members.
            message = torch.tensor([float(rank)])
            if group.rank() == 0:
                group.send([message], 1, 5).wait()
            elif group.rank() == 1:
                group.recv([message], 0, 5).wait()
                self.assertEqual(message.item(), members[0])
        group.monitored_barrier()

    def test_ranks_go_and_come(self):
        def body(rank, n, path):
            ranks.init("tutti", path, rank, n)
            group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
            for generation, members in enumerate(([0, 1, 2], [2, 0], [1], [1, 2, 0])):
                if rank in members:
                    meet(group, store, generation, members, rank)
                    self.check(group, rank, members)
            group.abort()
            with self.assertRaisesRegex(tutti_torch.TuttiError, "destroyed"):
                dist.all_reduce(torch.ones(1))
            meet(group, store, 100, [2, 1, 0], rank)
            self.check(group, rank, [2, 1, 0])
            dist.destroy_process_group()

        ranks.run(body, 3, joined=False)

    def test_after_a_death(self):
        """Even while an operation waits for the dead rank."""

        def body(rank, n, path):
            ranks.init("tutti", path, rank, n)
            group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
            store.set(f"joined/{rank}", "")
            if rank == 1:
                # Else a rank that is still in init_process_group would fail there.
                store.wait(["joined/0", "joined/2"])
                os.kill(os.getpid(), signal.SIGKILL)
            work = dist.all_reduce(torch.ones(70_000), async_op=True)
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 1"):
                work.wait()
            meet(group, store, 1, [0, 2], rank)
            self.check(group, rank, [0, 2])
            dist.destroy_process_group()

        ranks.run(body, 3, joined=False, dies=1)

    def test_registered_buckets_follow(self):
        def body(rank, n, path):
            from tutti_torch.buckets import RegisteredBuckets

            ranks.init("tutti", path, rank, n)
            group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
            state, buffer = RegisteredBuckets(group), torch.empty(1000)
            bucket = SimpleNamespace(buffer=lambda: buffer, index=lambda: 0, is_last=lambda: True)
            for generation in range(2):
                meet(group, store, generation, [0, 1], rank)
                buffer.fill_(rank)
                self.assertTrue(torch.equal(state.reduce(bucket).wait(), torch.full_like(buffer, 0.5)))
                handle = state._buckets[0].handle
                self.assertEqual(state._buckets[0].storage.data_ptr(), buffer.data_ptr())
            deregister = tutti_torch.library.load().tuttiCommDeregister
            self.assertEqual(deregister(group._communicator.handle, handle), tutti_torch.library.SUCCESS)
            state._buckets.clear()
            dist.destroy_process_group()

        ranks.run(body, 2, joined=False)

    def test_abort_ends_messages(self):
        """Even one that is never received and has no channel yet; no thread is left."""

        def body(rank, n, path):
            ranks.init("tutti", path, rank, n)
            group, store, tensor = dist.group.WORLD, dist.distributed_c10d._get_default_store(), torch.ones(3)
            dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
            if rank == 1:
                unwanted = dist.isend(tensor, 0)
            else:
                store.get("ended")  # else rank 0's abort would end it
            threads = [end.thread for ends in (group._channels._out, group._channels._in) for end in ends.values()]
            group.abort()
            if rank == 1:
                with self.assertRaisesRegex(tutti_torch.TuttiError, "destroyed"):
                    unwanted.wait(timedelta(seconds=60))
                store.set("ended", "")
            for thread in threads:
                thread.join(60)
                self.assertFalse(thread.is_alive())

        ranks.run(body, 2, joined=False)

    def test_wrong_handles(self):
        def body(rank, n, path):
            ranks.init("tutti", path, rank, n)
            group, options = dist.group.WORLD, SimpleNamespace(uuid=1, handles=["other"], timeout=None, hints={})
            with self.assertRaisesRegex(tutti_torch.TuttiError, f"{group.get_reconfigure_handle()} is not among the 1 "):
                group.reconfigure(options)
            # The group is as before. A set has no order, so all ranks take the same one.
            self.check(group, rank, [0, 1])
            handles = [None] * n
            dist.all_gather_object(handles, group.get_reconfigure_handle())
            options = SimpleNamespace(uuid=2, handles=set(handles), timeout=None, hints={})
            group.reconfigure(options).wait()
            self.assertEqual(group.rank(), sorted(handles).index(handles[rank]))
            group.monitored_barrier()
            absent = SimpleNamespace(uuid=3, handles=[*handles, "absent"], timeout=timedelta(seconds=5), hints={})
            with self.assertRaisesRegex(tutti_torch.TuttiError, "rank 2 of 3 never joined"):
                group.reconfigure(absent)

        ranks.run(body, 2, joined=False)

    def test_without_peers(self):
        """With enable_reconfigure=True of torch 2.15 nobody is waited for, and nothing works, before the first _reconfigure."""

        def body(rank, n, path):
            store = dist.FileStore(path, n)
            group = tutti_torch.TuttiProcessGroup(store, rank, n, timedelta(seconds=60), waits=True)
            tensor = torch.ones(1)
            for call in (lambda: group.allreduce([tensor]), lambda: group.barrier(), lambda: group.lost_ranks()):
                with self.assertRaisesRegex(tutti_torch.TuttiError, "no peers yet"):
                    call()
            meet(group, store, 1, [1, 0], rank)
            self.check(group, rank, [1, 0])
            group.shutdown()

        ranks.run(body, 2, joined=False)


if __name__ == "__main__":
    ranks.main()
