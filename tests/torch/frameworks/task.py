"""What every program here trains and prints at the end: the same for each backend."""
import torch

STEPS = 5


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))


def batch(rank, step):
    return torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + rank))


def loss(output):
    return output.square().mean()


def report(parameters):
    """Rounded, because backends add up in different orders."""
    print("result", *(f"{parameter.detach().float().norm():.3f}" for parameter in parameters), flush=True)
