"""The processes of a run: one, or as many as torchrun started."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

from .errors import UserError


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    restarted: bool = False  # torchrun started the processes anew after one of them failed

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """This rank's equal part of a whole batch."""
        return batch.chunk(self.size)[self.rank] if self.size > 1 else batch

    def whole(self, share: Tensor) -> Tensor:
        """The whole batch from every rank's equal part; gradients flow to this rank's."""
        if self.size == 1:
            return share
        parts = [torch.empty_like(share, memory_format=torch.contiguous_format) for _ in range(self.size)]
        distributed.all_gather(parts, share.detach().contiguous())
        parts[self.rank] = share
        return torch.cat(parts)

    def first_does(self, action: Callable[[], None]) -> None:
        """The first rank acts while the others wait; what it cannot do, none goes on without."""
        fault: list[str | None] = [None]
        if self.first:
            try:
                action()
            except UserError as error:
                fault = [str(error)]
        if self.size > 1:
            distributed.broadcast_object_list(fault)
        if fault[0] is not None:
            raise UserError(fault[0])


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the other processes where torchrun started several."""
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks(restarted=restarted)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), restarted)
        distributed.barrier()  # none leaves while another still speaks to it
    finally:
        gc.collect()  # a model in a cycle would hold the group and its threads to the very end
        distributed.destroy_process_group()
