"""What an epoch may leave out, and what the rest then stands for."""

import dataclasses
from pathlib import Path

import pytest
import torch

from quatserve.training.data.augment import epoch_generator
from quatserve.training.loop import run as runs
from quatserve.training.loop.batches import Batch, CifarData
from quatserve.training.loop.checkpoint import read_tensors
from quatserve.training.loop.fit import fit
from quatserve.training.loop.pruning import WHOLE_FROM, Pruning
from quatserve.training.loop.ranks import Ranks
from tests.training.tiny_command import interrupt_at, tiny_recipes

RECIPE = dataclasses.replace(tiny_recipes()["tiny-cifar"], prune=0.5, epochs=4)
COUNT = 2000


def known(share: float = 0.5) -> tuple[Pruning, torch.Tensor]:
    """Every image seen: one in four is hard. And which."""
    pruning = Pruning(COUNT, share)
    hard = torch.arange(COUNT) % 4 == 0
    pruning.remember(torch.arange(COUNT), torch.where(hard, 3.0, 0.1))
    return pruning, hard


def test_what_was_never_seen_is_never_left_out() -> None:
    order, weights = Pruning(COUNT, 0.5).draw(0.0, epoch_generator(0, 0))
    assert torch.equal(order.sort().values, torch.arange(COUNT))
    assert not torch.equal(order, torch.arange(COUNT))
    assert (weights == 1).all()


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_hard_images_stay_and_easy_ones_weigh_what_they_stand_for(share: float) -> None:
    pruning, hard = known(share)
    order, weights = pruning.draw(0.5, epoch_generator(0, 1))
    kept = torch.zeros(COUNT, dtype=torch.bool).index_fill(0, order, True)
    assert len(order) == kept.sum()  # no image twice
    assert kept[hard].all()
    assert kept[~hard].float().mean().item() == pytest.approx(1 - share, abs=0.05)
    assert (weights[hard] == 1).all()
    assert weights[order].sum().item() == pytest.approx(COUNT, rel=0.1)
    again, _ = pruning.draw(0.5, epoch_generator(0, 2))
    assert set(again.tolist()) != set(order.tolist())


def test_the_last_epochs_see_every_image() -> None:
    pruning, _ = known()
    for progress, whole in ((WHOLE_FROM - 0.01, False), (WHOLE_FROM, True), (0.99, True)):
        order, weights = pruning.draw(progress, epoch_generator(0, 3))
        assert (len(order) == COUNT) == whole
        assert bool((weights == 1).all()) == whole


def test_the_loss_is_the_weighted_mean_and_is_remembered(data: Path) -> None:
    source = CifarData(RECIPE, data)
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels, index = torch.tensor([1, 2, 3]), torch.tensor([7, 30, 5])
    batch = Batch(torch.empty(0), labels, index, torch.tensor([2.0, 1.0, 2.0]))
    each = -logits.log_softmax(1)[torch.arange(3), labels]
    expected = (2 * each[0] + each[1] + 2 * each[2]) / 5
    torch.testing.assert_close(source.loss(logits, batch), expected)
    assert source.pruning is not None
    torch.testing.assert_close(source.pruning.losses[index], each.detach())
    assert source.pruning.losses.isnan().sum() == 40 - 3
    wrong = (logits.argmax(1) != labels).double() @ torch.tensor([2.0, 1.0, 2.0]).double()
    assert source.score(logits, batch).tolist() == [wrong.item(), 5.0]


def test_a_pruned_run_is_shorter_and_resumes_as_if_never_stopped(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(run: Path, *, resume: bool = False) -> None:
        device = torch.device("cpu")
        fit(RECIPE, data, run, seed=0, device=device, compiled=False, resume=resume, ranks=Ranks())

    train(tmp_path / "whole")
    images = [row["images"] for row in runs.read_metrics(tmp_path / "whole")]
    assert images[0] == 40  # all that there are
    assert max(images[1:]) < 40
    with monkeypatch.context() as patch:
        interrupt_at(10, patch.setattr)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "stopped")
    train(tmp_path / "stopped", resume=True)
    for name in (runs.STATE, runs.CHECKPOINT):
        ours, theirs = (read_tensors(tmp_path / run / name)[0] for run in ("whole", "stopped"))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
