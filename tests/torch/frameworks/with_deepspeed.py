"""DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 with_deepspeed.py BACKEND: ZeRO's second stage"""
import sys

import deepspeed
import task
import torch

deepspeed.init_distributed(dist_backend=sys.argv[1])
model = task.model()
config = {
    "train_micro_batch_size_per_gpu": 16,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(task.STEPS):
    engine.backward(task.loss(engine(task.batch(engine.global_rank, step))))
    engine.step()
if engine.global_rank == 0:
    task.report(model.parameters())
torch.distributed.destroy_process_group()
