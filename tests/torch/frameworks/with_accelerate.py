"""torchrun --nproc-per-node 2 with_accelerate.py BACKEND. Accelerate itself names only gloo and mpi for host memory, and
takes the group that is there."""
import sys

import task
import torch
import torch.distributed as dist
from accelerate import Accelerator

dist.init_process_group(sys.argv[1])
accelerator = Accelerator(cpu=True)
model = task.model()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(task.STEPS):
    optimizer.zero_grad()
    accelerator.backward(task.loss(model(task.batch(accelerator.process_index, step))))
    optimizer.step()
assert accelerator.gather(torch.tensor([accelerator.process_index])).tolist() == [0, 1]
if accelerator.is_main_process:
    task.report(model.parameters())
accelerator.end_training()
