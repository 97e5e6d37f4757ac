"""The model of train.py with Ray Train: python3 ray_train.py [WORKERS], on a machine of a Ray cluster or on any."""
import sys

import ray
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train():
    torch.manual_seed(1)
    model = prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(20):
        inputs = torch.randn(32, 16, generator=batches)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    ray.init(include_dashboard=False)
    TorchTrainer(train, torch_config=TorchConfig(backend="tutti"), scaling_config=ScalingConfig(num_workers=workers)).fit()
