"""python3 with_ray.py BACKEND: two workers of Ray Train"""
import os
import sys

import ray
import task
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train():
    model = prepare_model(task.model())
    rank = ray.train.get_context().get_world_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(task.STEPS):
        optimizer.zero_grad()
        task.loss(model(task.batch(rank, step))).backward()
        optimizer.step()
    if rank == 0:
        task.report(model.parameters())


os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
paths = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")])
ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
TorchTrainer(train, torch_config=TorchConfig(backend=sys.argv[1]), scaling_config=ScalingConfig(num_workers=2)).fit()
