"""torchft's process groups on Tutti. Needs torchft:

    manager = torchft.Manager(pg=tutti_torch.torchft.ProcessGroupTutti(), ...)   # in ProcessGroupGloo's place
"""
from __future__ import annotations

import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from .process_group import TuttiProcessGroup

__all__ = ["ProcessGroupTutti"]


class ProcessGroupTutti(ProcessGroupWrapper):  # type: ignore[misc]
    """A group that is formed again when ranks have left or joined."""

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        return TuttiProcessGroup(store, rank, world_size, self._timeout)

    def getBackendName(self) -> str:  # noqa: N802
        return "torchft-tutti"
