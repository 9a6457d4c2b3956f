"""What two ranks compute, written to files for the tests to compare with one process."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from quatserve.training.errors import UserError
from quatserve.training.loop.batches import Epoch
from quatserve.training.loop.losses import road_loss
from quatserve.training.loop.ranks import Ranks
from quatserve.training.loop.trainer import Trainer
from quatserve.training.networks.residual import Network, NetworkConfig
from quatserve.training.nn.algebra import ALGEBRAS
from quatserve.training.nn.norm import HypercomplexBatchNorm2d
from tests.training.loop.test_trainer import RECIPE, Noise
from tests.training.oracles import correlated_batch, randn

SHARES = (slice(0, 2), slice(2, 5))  # of a batch of five: unequal
Results = dict[str, Tensor]


def normalisation(algebra: str, *, whiten: bool, part: slice = slice(None)) -> Results:
    """One step of a layer on a part of the batch: output, gradients, running statistics."""
    d = ALGEBRAS[algebra].dimension
    layer = HypercomplexBatchNorm2d(2 * d, whiten=whiten, algebra=algebra).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * randn(*parameter.shape, seed=7))
    whole = correlated_batch(d, 2, shape=(5, 3, 4))
    x = whole[part].clone().requires_grad_()
    y = layer(x)
    (y * randn(*whole.shape, seed=3)[part]).sum().backward()
    assert x.grad is not None
    results = {"y": y.detach(), "dx": x.grad, **layer.state_dict(prefix="after.")}
    return results | {f"d{n}": p.grad for n, p in layer.named_parameters() if p.grad is not None}


def network_step(task: str, ranks: Ranks) -> Results:
    """Loss and gradients of a whole batch through DistributedDataParallel."""
    torch.manual_seed(0)
    network = Network(NetworkConfig(task=task, depth=1, width=8)).double()  # type: ignore[arg-type]
    model = DistributedDataParallel(network, forward_sync_buffers=False) if ranks.size > 1 else network
    images = randn(4, 3, 6, 8)
    logits = ranks.whole(model(ranks.share(images)))
    if (
        task == "segmentation"
    ):  # shares of very different ground truth: the Dice of a mean is no mean of Dices
        targets = torch.zeros(4, 6, 8, dtype=torch.uint8)
        targets[0], targets[1, :2], targets[3, :, :4] = 1, 255, 1
        loss = road_loss(logits, targets)
    else:
        loss = F.cross_entropy(logits, torch.arange(4))
    (loss * ranks.size).backward()
    gradients = {f"d{name}": p.grad for name, p in network.named_parameters() if p.grad is not None}
    return (
        {"loss": loss.detach(), "logits": logits.detach()} | gradients | network.state_dict(prefix="after.")
    )


def complaint(action: Callable[[], object]) -> str:
    try:
        action()
    except UserError as error:
        return str(error)
    return "none"


def spoiled_epoch(ranks: Ranks) -> str:
    """The fifth of six images is not a number: it is in the second rank's share."""
    trainer = Trainer(RECIPE, 0, Noise(1), torch.device("cpu"), compiled=False, ranks=ranks)
    return complaint(lambda: trainer.train_epoch(0, lambda *_: None))


class Remembering(Noise):
    """Data whose next epoch depends on what this rank remembers."""

    def __init__(self, remembered: float):
        super().__init__()
        self.losses, self.drawn_by = torch.full((3,), remembered), torch.empty(0)

    def epoch(self, number: int, seed: int) -> Epoch:
        self.drawn_by = self.losses.clone()
        return super().epoch(number, seed)

    def state(self) -> dict[str, Tensor]:
        return {"losses": self.losses}


def remembered(ranks: Ranks) -> Results:
    """What an epoch was drawn by, where each rank remembers something else."""
    data = Remembering(1.0 + ranks.rank)
    Trainer(RECIPE, 0, data, torch.device("cpu"), compiled=False, ranks=ranks).train_epoch(0, lambda *_: None)
    return {"losses": data.drawn_by}


def full_disk() -> None:
    raise UserError("the disk is full")


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", store, rank=rank, world_size=2, timeout=timedelta(seconds=100))
    ranks = Ranks(rank, 2)
    results: dict[str, Results] = {}
    for algebra in ALGEBRAS:
        for whiten in (True, False):
            results[f"{algebra} {whiten}"] = normalisation(algebra, whiten=whiten, part=SHARES[rank])
    for task in ("classification", "segmentation"):
        results[task] = network_step(task, ranks)
    results["remembered"] = remembered(ranks)
    words = {"nan": spoiled_epoch(ranks), "full disk": complaint(lambda: ranks.first_does(full_disk))}
    torch.save((results, words), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()
