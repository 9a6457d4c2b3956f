"""Reads the network of a run and checks that its numbers are finite."""

from pathlib import Path

from torch import nn

from quatserve.training.errors import UserError
from quatserve.training.loop.run import CHECKPOINT, STATE, RunConfig, load_network, read_config
from quatserve.training.networks.residual import Network


def read_run(run: Path) -> tuple[Network, RunConfig]:
    """Return the network and its configuration; of an unfinished run, the average so far."""
    config = read_config(run)
    if not (run / CHECKPOINT).is_file() and not (run / STATE).is_file():
        raise UserError(
            f"{run} is not finished ({CHECKPOINT} is missing): "
            f"`quatserve fit {config.recipe.name} --out {run} --data DIR "
            f"--epochs {config.recipe.epochs} --seed {config.seed}{' --from RUN' * bool(config.start)}"
            f"{' --teacher RUN' * bool(config.teacher)} --resume` continues it"
        )
    network, config = load_network(run)
    if not isinstance(network, Network):
        raise UserError(f"{run} holds a teacher: its students are what is served")
    return network, config


def check_finite(network: nn.Module) -> None:
    for name, tensor in network.state_dict().items():
        if not tensor.isfinite().all():
            raise UserError(f"{name} holds numbers that are not finite: train the network again")
