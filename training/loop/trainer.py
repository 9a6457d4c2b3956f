"""Trains one epoch, and carries the state from one epoch to the next."""

import math
import warnings
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from quatserve.training.errors import UserError
from quatserve.training.loop import compilation
from quatserve.training.loop.average import moving_average
from quatserve.training.loop.batches import Batch, Data
from quatserve.training.loop.distillation import OnlineTeacher
from quatserve.training.loop.muon import Muon, hypercomplex_convolutions
from quatserve.training.loop.ranks import Ranks
from quatserve.training.networks.build import AnyNetwork, build_network
from quatserve.training.recipes.schema import Recipe

CHECK_EVERY = 10  # steps between reads of the loss, each of which waits for the device
Progress = Callable[[int, int, float, float], None]  # images seen, images in all, mean loss and score so far


class Trainer:
    """Network, moving average and optimiser of a run; `state` and `restore` save and load all three."""

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        data: Data,
        device: torch.device,
        *,
        compiled: bool,
        ranks: Ranks,
        teacher: OnlineTeacher | None = None,
    ):
        self.recipe, self.seed, self.data, self.device, self.ranks = recipe, seed, data, device, ranks
        self.teacher = teacher
        torch.manual_seed(seed)
        self.network: AnyNetwork = build_network(recipe.network).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = moving_average(self.network, recipe.ema_decay) if recipe.ema_decay else None
        convolutions = hypercomplex_convolutions(self.network) if recipe.kernel_rate else []
        self._kernels = {convolution.weight for convolution in convolutions}
        self.muon = Muon(convolutions, momentum=recipe.momentum) if convolutions else None
        self.sgd = torch.optim.SGD(
            parameter_groups(
                self.network, recipe.weight_decay, self._kernels, gamma_decay=recipe.gamma_decay
            ),
            lr=0.0,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
            fused=True,
        )
        model: nn.Module = self.network
        if ranks.size > 1:  # running statistics are already those of all ranks
            warnings.filterwarnings(
                "ignore", "Grad strides do not match"
            )  # 1 x 1 kernels: one layout has two names
            model = DistributedDataParallel(self.network, forward_sync_buffers=False)
        self._model = compilation.compiled(model) if compiled else model
        self.step = 0

    def train_epoch(self, epoch: int, progress: Progress) -> dict[str, float]:
        """Train on one pass of the data; return the row of metrics.jsonl but for its time and validation."""
        self.network.train()
        steps, batches = self.data.epoch(epoch, self.seed)
        images, score = steps * self.recipe.batch_size, torch.zeros(2, dtype=torch.double, device=self.device)
        losses: list[Tensor] = []
        clipped: list[Tensor] = []
        rates: list[float] = []
        for i, batch in enumerate(batches):
            rates.append(self.recipe.schedule.rate(epoch + i / steps, self.recipe.epochs))
            loss, batch_score, norm = self._train_step(batch, rates[-1])
            losses.append(loss)
            clipped.append(norm > self.recipe.clip_norm)
            score += batch_score
            if (i + 1) % CHECK_EVERY == 0 or i + 1 == steps:
                mean = self._mean_finite(losses, rates)
                progress((i + 1) * self.recipe.batch_size, images, mean, _ratio(score))
        mean = self._mean_finite(losses, rates)
        return {
            "images": images,
            "loss": mean,
            "score": _ratio(score),
            "rate": rates[-1],
            "clipped": torch.stack(clipped).float().mean().item(),
        }

    def _train_step(self, batch: Batch, rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Make one step. Return loss, score and gradient norm of the whole batch, the same on every rank."""
        batch = on_device(batch._replace(inputs=self.ranks.share(batch.inputs)), self.device)
        if self.teacher:
            batch = batch._replace(answers=self.ranks.whole(self.teacher(batch.inputs)))
        self.network.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16"):
            output = self._model(batch.inputs)
        logits = self.ranks.whole(output.float())
        loss = self.data.loss(logits, batch)
        (loss * self.ranks.size).backward()  # DistributedDataParallel divides by it
        norm = self._update(rate)
        self.step += 1
        if self.average:
            self.average.update_parameters(self.network)
        return loss.detach(), self.data.score(logits.detach(), batch), norm

    def _update(self, rate: float) -> Tensor:
        for group in self.sgd.param_groups:
            group["lr"] = rate
        moved = [parameter for group in self.sgd.param_groups for parameter in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(moved, self.recipe.clip_norm)
        self.sgd.step()
        if self.muon:
            self.muon.param_groups[0]["lr"] = rate * self.recipe.kernel_rate
            self.muon.step()
        return norm

    def _mean_finite(self, losses: list[Tensor], rates: list[float]) -> float:
        values = torch.stack(losses)
        bad = (~values.isfinite()).nonzero().flatten().tolist()
        if bad:
            step = self.step - len(losses) + bad[0] + 1
            raise UserError(
                f"the loss is {values[bad[0]].item()} at step {step} (learning rate {rates[bad[0]]:.4g}): "
                "try a lower learning rate, a longer warm-up or a smaller clip_norm"
            )
        return float(values.mean())

    @property
    def evaluated(self) -> AnyNetwork:
        """The weights that are scored and shipped: the average, if there is one."""
        return self.average.module if self.average else self.network  # type: ignore[return-value]

    def validate(self) -> float | None:
        """Return the score on the held-out split; None if there is none."""
        batches = self.data.validation()
        return None if batches is None else score_of(self.evaluated, batches, self.data.score, self.device)

    def state(self) -> dict[str, Tensor]:
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        if self.average:
            tensors |= {f"average.{name}": value for name, value in self.average.module.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            state = self._optimiser_of(parameter).state
            if parameter in state:
                tensors[f"momentum.{name}"] = state[parameter]["momentum_buffer"]
        return tensors

    def begin_with(self, weights: dict[str, Tensor]) -> None:
        """Replace random weights by those of another run; weights that it does not have stay random."""
        self.network.load_state_dict(self.network.state_dict() | weights)
        if self.average:
            self.average.module.load_state_dict(self.network.state_dict())

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        def part(prefix: str) -> dict[str, Tensor]:
            return {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}

        self.network.load_state_dict(part("network."))
        if self.average:
            self.average.module.load_state_dict(part("average."))
            self.average.n_averaged.fill_(step)
        parameters = dict(self.network.named_parameters())
        for name, saved in part("momentum.").items():
            buffer: Any = torch.empty_like(parameters[name]).copy_(saved)  # in the parameter's memory layout
            self._optimiser_of(parameters[name]).state[parameters[name]]["momentum_buffer"] = buffer
        self.step = step

    def _optimiser_of(self, parameter: nn.Parameter) -> torch.optim.Optimizer:
        return self.muon if self.muon and parameter in self._kernels else self.sgd


def parameter_groups(
    network: nn.Module,
    weight_decay: float,
    without: Container[nn.Parameter] = (),
    *,
    gamma_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Group the parameters by decay: kernels and gamma have their own, beta and biases none."""
    decays = {"weight": weight_decay, "gamma": gamma_decay}
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter not in without:
            groups.setdefault(decays.get(name.rpartition(".")[2], 0.0), []).append(parameter)
    return [{"params": members, "weight_decay": decay} for decay, members in groups.items()]


@torch.no_grad()
def score_of(
    network: nn.Module,
    batches: Iterator[Batch],
    score: Callable[[Tensor, Batch], Tensor],
    device: torch.device,
) -> float:
    """Return the pooled score of a network in evaluation mode."""
    network.eval()
    total = torch.zeros(2, dtype=torch.double, device=device)
    for batch in batches:
        there = on_device(batch, device)
        total += score(network(there.inputs), there)
    return _ratio(total)


def on_device(batch: Batch, device: torch.device) -> Batch:
    return Batch(*(None if part is None else part.to(device, non_blocking=True) for part in batch))  # type: ignore[arg-type]


def _ratio(score: Tensor) -> float:
    wrong, total = score.tolist()
    return wrong / total if total else math.nan
