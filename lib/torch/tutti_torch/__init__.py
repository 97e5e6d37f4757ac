"""Tutti as a backend of torch.distributed.

    import torch.distributed as dist, tutti_torch   # the import is not needed where the package is installed
    dist.init_process_group("tutti")
"""
from __future__ import annotations

import torch.distributed as dist

from .buckets import use_registered_buckets
from .errors import TuttiError
from .process_group import NAME, TuttiProcessGroup, create

__all__ = ["TuttiError", "TuttiProcessGroup", "register", "use_registered_buckets"]


def register() -> None:
    """Makes the name "tutti" known to torch.distributed. Done by the import; a second time changes nothing."""
    if dist.is_available() and NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])


register()
