"""The processes of a run: one, or as many as torchrun started."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """This rank's equal part of a whole batch."""
        return batch.chunk(self.size)[self.rank] if self.size > 1 else batch

    def wait(self) -> None:
        if self.size > 1:
            distributed.barrier()


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the other processes where torchrun started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()
