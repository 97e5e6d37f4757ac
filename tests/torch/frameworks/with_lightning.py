"""torchrun --nproc-per-node 2 with_lightning.py BACKEND"""
import logging
import os
import sys

import lightning
import task
import torch
from lightning.pytorch.strategies import DDPStrategy


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = task.model()

    def training_step(self, batch, _):
        return task.loss(self.model(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
rank, module = int(os.environ["RANK"]), Module()
strategy = DDPStrategy(process_group_backend=sys.argv[1])
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False)
trainer.fit(module, torch.utils.data.DataLoader([task.batch(rank, step) for step in range(task.STEPS)], batch_size=None))
if rank == 0:
    task.report(module.parameters())
