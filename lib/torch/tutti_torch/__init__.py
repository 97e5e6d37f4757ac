"""Tutti as a backend of torch.distributed.

    import torch.distributed as dist, tutti_torch   # the import is not needed where the package is installed
    dist.init_process_group("tutti")
"""
from __future__ import annotations


# Before the imports: if they are the first to import torch, torch calls this while they run.
def register() -> None:
    """Registers the name "tutti" with torch.distributed. The import does it; calling it again changes nothing."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    from .group_base import DEVICES
    from .process_group import NAME, create, serve_monitored_barrier

    serve_monitored_barrier()
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=list(DEVICES))


from .buckets import use_registered_buckets  # noqa: E402
from .direct import all_reduce_  # noqa: E402
from .eager import keep_eager  # noqa: E402
from .errors import TuttiError  # noqa: E402
from .process_group import TuttiProcessGroup  # noqa: E402
from .quantized import QuantizedState, quantized_hook  # noqa: E402

__all__ = [
    "QuantizedState",
    "TuttiError",
    "TuttiProcessGroup",
    "all_reduce_",
    "quantized_hook",
    "register",
    "use_registered_buckets",
]

register()
keep_eager()
