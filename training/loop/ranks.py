"""The processes of a run: one, or those that torchrun started."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from quatserve.training.errors import UserError


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    size: int = 1
    restarted: bool = False  # torchrun restarted the processes after a failure

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, batch: Tensor) -> Tensor:
        """Return this rank's equal part of a whole batch."""
        return batch.chunk(self.size)[self.rank] if self.size > 1 else batch

    def whole(self, share: Tensor) -> Tensor:
        """Gather the whole batch from all ranks. Gradients flow to this rank's part only."""
        if self.size == 1:
            return share
        parts = [torch.empty_like(share, memory_format=torch.contiguous_format) for _ in range(self.size)]
        distributed.all_gather(parts, share.detach().contiguous())
        parts[self.rank] = share
        return torch.cat(parts)

    def agree(self, value: object) -> bool:
        """Whether every rank has the same value."""
        values = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value)
        return all(other == value for other in values)

    def on_first_rank(self, action: Callable[[], None]) -> None:
        """Run `action` on the first rank while the others wait. Its UserError is raised on every rank."""
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
    shared, rank, size = next(rendezvous("env://"))
    start = meet(shared, rank, size)
    store = PrefixStore(f"start {start}", shared)
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield Ranks(rank, size, _any_rank(restarted or start > size, size))
        distributed.barrier()  # no rank may leave while another still needs it
    finally:
        gc.collect()  # a model in a reference cycle would keep the process group and its threads alive
        distributed.destroy_process_group()


def meet(store: Store, rank: int, size: int) -> int:
    """Agree on a number that identifies this start of the processes, distinct from that of any earlier start.

    torchrun keeps its store when it starts the processes anew: the addresses of the dead ones are in it, and
    a process that comes first would call them. Its count of restarts does not tell the starts apart, because
    each machine counts its own. So every process draws a ticket, the first rank offers its own as the number,
    and another rank takes the offer once the first has answered its ticket: a dead one cannot.
    """
    ticket = store.add("tickets", 1)
    if rank == 0:
        store.set("offer", str(ticket))
        for other in range(1, size):
            theirs = int(store.get(f"ticket of {other} for {ticket}"))  # waits
            store.set(f"{ticket} answers {theirs}", "")
        return ticket
    while True:
        offer = int(store.get("offer"))
        store.set(f"ticket of {rank} for {offer}", str(ticket))
        if store.check([f"{offer} answers {ticket}"]):
            return offer
        time.sleep(0.05)


def _any_rank(mine: bool, size: int) -> bool:
    """Return whether `mine` is true on any rank."""
    answers = [False] * size
    distributed.all_gather_object(answers, mine)
    return any(answers)
