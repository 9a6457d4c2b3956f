"""Reads the finished network of a run and checks that it can be folded."""

from pathlib import Path

from quatserve.training.errors import UserError
from quatserve.training.loop.run import CHECKPOINT, RunConfig, load_network, read_config
from quatserve.training.networks.residual import Network


def read_run(run: Path) -> tuple[Network, RunConfig]:
    """Return the network and its configuration; UserError if the run is unfinished or damaged."""
    config = read_config(run)
    if not (run / CHECKPOINT).is_file():
        raise UserError(
            f"{run} is not finished ({CHECKPOINT} is missing): "
            f"`quatserve fit {config.recipe.name} --out {run} --data DIR "
            f"--epochs {config.recipe.epochs} --seed {config.seed}{' --from RUN' * bool(config.start)}"
            f"{' --teacher RUN' * bool(config.teacher)} --resume` continues it"
        )
    network, config = load_network(run)
    if not isinstance(network, Network):
        raise UserError(f"{run} holds a teacher: its students are what is served")
    check_finite(network)
    return network, config


def check_finite(network: Network) -> None:
    for name, tensor in network.state_dict().items():
        if not tensor.isfinite().all():
            raise UserError(f"{name} holds numbers that are not finite: the run is damaged, train it again")
