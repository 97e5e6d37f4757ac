"""python3 with_torchft.py BACKEND: two replicas, of which one is killed and comes again; each step is made by
both, and who comes again gets the other's state."""
import multiprocessing
import os
import signal
import sys
from datetime import timedelta

import task
import torch
import torchft
from torchft.coordination import LighthouseServer


def process_group(backend):
    if backend == "gloo":
        return torchft.ProcessGroupGloo(timeout=timedelta(seconds=10))
    from tutti_torch.torchft import ProcessGroupTutti

    return ProcessGroupTutti(timeout=timedelta(seconds=10))


def replica(backend, number, lighthouse, life, pipe):
    """In its first life the second replica is killed between steps."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOGLEVEL="ERROR")
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def state():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(given):
        model.load_state_dict(given["model"])
        optimizer.load_state_dict(given["optimizer"])

    manager = torchft.Manager(
        pg=process_group(backend), min_replica_size=2, load_state_dict=load, state_dict=state,
        replica_id=f"replica {number}", store_addr="localhost", store_port=store.port, rank=0, world_size=1,
        lighthouse_addr=lighthouse, timeout=timedelta(seconds=20))
    wrapped, stepper = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, optimizer)
    while manager.current_step() < 20:
        stepper.zero_grad()
        task.loss(wrapped(torch.ones(16, 20))).backward()
        stepper.step()
        if number == 1 and life == 0 and manager.current_step() >= 5:
            os.kill(os.getpid(), signal.SIGKILL)
    pipe.send([parameter.detach().tolist() for parameter in model.parameters()])
    manager.shutdown(wait=False)
    os._exit(0)


def main():
    context = multiprocessing.get_context("spawn")
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
    pipes = [context.Pipe() for _ in range(2)]

    def start(number, life):
        arguments = (sys.argv[1], number, lighthouse.address(), life, pipes[number][1])
        process = context.Process(target=replica, args=arguments)
        process.start()
        return process

    first, second = start(0, 0), start(1, 0)
    second.join()
    assert second.exitcode == -signal.SIGKILL
    again = start(1, 1)
    states = [pipes[number][0].recv() for number in range(2)]
    first.join()
    again.join()
    lighthouse.shutdown()
    for mine, other in zip(*states):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(other))
    print("result the replicas agree after one was killed and came again", flush=True)


if __name__ == "__main__":
    main()
