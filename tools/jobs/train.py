"""A small model, trained data-parallel: what the jobs in this folder start. Each process is one rank."""
import torch
import torch.distributed as dist
import tutti_torch  # noqa: F401  not needed once it is installed

dist.init_process_group("tutti")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = torch.Generator().manual_seed(rank)
for step in range(20):
    inputs = torch.randn(32, 16, generator=batches)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
if rank == 0:
    print(f"{size} ranks: loss {loss:.6f}", flush=True)
dist.destroy_process_group()
