"""One training step against plain torch, what is decayed, and what a loss that is no number says."""

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.training.errors import UserError
from quatserve.training.loop.batches import Batch, Epoch
from quatserve.training.loop.muon import Muon, hypercomplex_convolutions
from quatserve.training.loop.ranks import Ranks
from quatserve.training.loop.trainer import Trainer, parameter_groups, score_of
from quatserve.training.networks.residual import Network, NetworkConfig
from quatserve.training.nn import batch_whitening
from quatserve.training.nn.algebra import ALGEBRAS
from quatserve.training.nn.whitening import whitening_matrix
from quatserve.training.recipes.schedule import OneCycle, Steps
from quatserve.training.recipes.schema import Recipe
from tests.training.oracles import randn

RECIPE = Recipe(
    name="step",
    summary="for tests",
    dataset="cifar10",
    network=NetworkConfig(depth=1, width=8),
    epochs=2,
    batch_size=6,
    schedule=OneCycle(peak=0.1),
    weight_decay=0.01,
    ema_decay=0.9,
)


class Noise:
    """Three batches of noise an epoch; labels that noise cannot explain."""

    def __init__(self, spoiled: int | None = None):
        self.spoiled = spoiled

    def epoch(self, number: int, seed: int) -> Epoch:
        return Epoch(3, self.batches(number, seed))

    def batches(self, number: int, seed: int) -> Iterator[Batch]:
        for i in range(3):
            images = randn(6, 3, 8, 8, seed=100 * seed + 10 * number + i, dtype=torch.float32)
            if i == self.spoiled:
                images[4] = torch.nan
            yield Batch(images.contiguous(memory_format=torch.channels_last), torch.arange(6) % 4)

    def validation(self) -> Iterator[Batch] | None:
        return None

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch.truth)

    def score(self, logits: Tensor, batch: Batch) -> Tensor:
        return torch.stack([(logits.argmax(1) != batch.truth).sum(), torch.tensor(len(batch.truth))]).double()

    def state(self) -> dict[str, Tensor]:
        return {}


def trainer(recipe: Recipe = RECIPE, data: Noise | None = None) -> Trainer:
    return Trainer(recipe, 0, data or Noise(), torch.device("cpu"), compiled=False, ranks=Ranks())


def ignore(images: int, of: int, loss: float, score: float) -> None:
    """A progress bar that nobody watches."""


def test_an_epoch_is_plain_nesterov() -> None:
    """Against torch's own unfused optimiser, clipping by the definition."""
    ours = trainer()
    network = copy.deepcopy(ours.network)
    named = list(network.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if name.endswith("weight")], "weight_decay": 0.01},
        {"params": [p for name, p in named if not name.endswith("weight")]},
    ]
    optimiser = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, fused=False, foreach=False)
    losses = []
    for i, (images, labels, *_) in enumerate(Noise().batches(1, 0)):
        for group in optimiser.param_groups:
            group["lr"] = OneCycle(peak=0.1).rate(1 + i / 3, 2)
        optimiser.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        loss.backward()
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        for gradient in gradients:
            gradient.mul_(min(1.0, 1 / norm.item()))
        optimiser.step()
        losses.append(loss.item())
    row = ours.train_epoch(1, ignore)
    assert row["loss"] == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert row["rate"] == OneCycle(peak=0.1).rate(1 + 2 / 3, 2)
    for (name, a), b in zip(ours.network.named_parameters(), network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)


class Watched(Noise):
    """It keeps the types of the logits that the loss is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        self.types.add(logits.dtype)
        return super().loss(logits, batch)


@pytest.mark.parametrize("algebra", ["real", "quaternion", "octonion"])
def test_layers_are_rounded_to_the_recipes_precision_and_nothing_else(
    algebra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics, their gradients and the loss stay in fp32; the loss is that of fp32, to the rounding."""
    network = dataclasses.replace(RECIPE.network, algebra=algebra)
    recipe = dataclasses.replace(RECIPE, network=network)
    data, whitened, layers = Watched(), set(), {}

    def watched(covariance: Tensor, eps: float) -> Tensor:
        whitened.add(covariance.dtype)
        return whitening_matrix(covariance, eps)

    monkeypatch.setattr(batch_whitening, "whitening_matrix", watched)
    ours = trainer(dataclasses.replace(recipe, precision="bf16"), data)
    for name, module in ours.network.named_modules():
        module.register_forward_hook(lambda _, __, output, name=name: layers.update({name: output.dtype}))
    row = ours.train_epoch(0, ignore)
    assert data.types == whitened == {torch.float32}
    assert {layers[name] for name in ("stem", "norm", "blocks.0", "blocks.1.shortcut", "head")} == {
        torch.bfloat16
    }
    exact = trainer(recipe).train_epoch(0, ignore)["loss"]
    assert row["loss"] != exact
    assert row["loss"] == pytest.approx(exact, rel=0.02)


def test_kernels_alone_are_decayed() -> None:
    network = Network(NetworkConfig(depth=1, width=8))
    kernels, others = parameter_groups(network, 0.5)
    assert (kernels["weight_decay"], others["weight_decay"]) == (0.5, 0.0)
    layers = [m for m in network.modules() if hasattr(m, "weight") and not isinstance(m, nn.Sequential)]
    assert {id(p) for p in kernels["params"]} == {id(m.weight) for m in layers}
    assert len(kernels["params"]) + len(others["params"]) == len(list(network.parameters()))


@pytest.mark.parametrize("kernel_rate", [0.0, 0.15])
def test_state_and_restore_carry_everything(kernel_rate: float) -> None:
    recipe = dataclasses.replace(RECIPE, kernel_rate=kernel_rate)
    first, second = trainer(recipe), trainer(recipe)
    first.train_epoch(0, ignore)
    second.restore(first.state(), first.step)
    assert second.step == 3
    for one in (first, second):
        one.train_epoch(1, ignore)
    a, b = first.state(), second.state()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    parameters = {name for name, _ in first.network.named_parameters()}
    assert {key.removeprefix("momentum.") for key in a if key.startswith("momentum.")} == parameters
    assert {key.partition(".")[0] for key in a} == {"network", "average", "momentum"}


def test_a_kernel_rate_gives_hypercomplex_kernels_alone_to_muon() -> None:
    """The kernels move by what Muon makes of their gradients; all the rest by clipped SGD."""
    ours = trainer(dataclasses.replace(RECIPE, kernel_rate=0.5, momentum=0.0))
    before = copy.deepcopy(ours.network)
    images, labels, *_ = next(Noise().batches(0, 0))
    F.cross_entropy(before.train()(images), labels).backward()
    ours.network.train()
    ours._train_step(Batch(images, labels), 0.1)
    kernels = hypercomplex_convolutions(before)
    muon = Muon(kernels, momentum=0.0)
    muon.param_groups[0]["lr"] = 0.05
    muon.step()
    others = parameter_groups(before, RECIPE.weight_decay, {k.weight for k in kernels})
    nn.utils.clip_grad_norm_([p for group in others for p in group["params"]], RECIPE.clip_norm)
    torch.optim.SGD(others, lr=0.1).step()
    for (name, a), b in zip(ours.network.named_parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)


def test_without_momentum_and_without_average() -> None:
    recipe = dataclasses.replace(RECIPE, momentum=0.0, ema_decay=0.0, schedule=Steps(rates=((0, 0.01),)))
    first, second = trainer(recipe), trainer(recipe)
    first.train_epoch(0, ignore)
    assert first.evaluated is first.network
    second.restore(first.state(), first.step)
    for one in (first, second):
        one.train_epoch(1, ignore)
    assert all(torch.equal(value, second.state()[key]) for key, value in first.state().items())


@pytest.mark.parametrize("spoiled", [0, 1])
def test_a_loss_that_is_no_number_names_step_rate_and_remedy(spoiled: int) -> None:
    one = trainer(data=Noise(spoiled))
    rate = OneCycle(peak=0.1).rate(spoiled / 3, 2)
    with pytest.raises(UserError) as caught:
        one.train_epoch(0, ignore)
    expected = rf"the loss is nan at step {spoiled + 1} (learning rate {rate:.4g}): try a lower learning rate"
    assert str(caught.value).startswith(expected)


def test_progress_is_told_as_it_is() -> None:
    told: list[tuple[int, int, float, float]] = []
    row = trainer().train_epoch(0, lambda *values: told.append(values))
    assert told == [(18, 18, row["loss"], row["score"])]
    assert row["images"] == 18
    assert 0 <= row["score"] <= 1


def test_score_is_pooled_in_evaluation_mode() -> None:
    network = Network(NetworkConfig(depth=1, width=8))
    images, labels = randn(5, 3, 8, 8, dtype=torch.float32), torch.arange(5)
    error = score_of(
        network,
        iter([Batch(images[:4], labels[:4]), Batch(images[4:], labels[4:])]),
        Noise().score,
        torch.device("cpu"),
    )
    assert not network.training
    assert error == (network(images).argmax(1) != labels).double().mean().item()


# Compiled


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch, of itself
@pytest.mark.parametrize("algebra", list(ALGEBRAS))
def test_the_compiled_step_has_no_graph_breaks(algebra: str) -> None:
    """fullgraph raises at a break; the backend runs what was captured, forward and backward, uncompiled."""
    torch.manual_seed(0)
    network = Network(NetworkConfig(algebra=algebra, depth=1, width=8))
    plain = copy.deepcopy(network)
    torch.compiler.reset()
    compiled = torch.compile(network, fullgraph=True, dynamic=False, backend="aot_eager")
    images = randn(4, 3, 8, 8, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    ours, theirs = compiled(images), plain(images)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for (name, a), b in zip(network.named_parameters(), plain.named_parameters(), strict=True):
        assert a.grad is not None, name
        assert b[1].grad is not None, name
        torch.testing.assert_close(a.grad, b[1].grad, rtol=1e-3, atol=1e-4)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value, rtol=1e-4, atol=1e-5)
