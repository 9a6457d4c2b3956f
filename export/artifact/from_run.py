"""Builds the artifact of a run directory, by the same function as that of anybody's module."""

from collections.abc import Collection
from pathlib import Path

from quatserve.export.artifact.building import build
from quatserve.export.artifact.files import Say
from quatserve.export.artifact.history import origin_of
from quatserve.export.artifact.source import read_run
from quatserve.export.artifact.staging import name_and_version
from quatserve.export.datasets import read_splits
from quatserve.service.artifact import Description, Precision


def build_run(
    run: Path,
    data: Path,
    out: Path,
    precisions: Collection[Precision] | None = None,
    *,
    force: bool = False,
    max_loss: float | None = None,
    say: Say = print,
) -> Description:
    """Write the artifact `out` from a run of `quatserve fit` and the data that it was trained on."""
    name_and_version(out)  # before the data is read
    network, config = read_run(run)
    splits = read_splits(run, config, data)
    return build(
        network,
        out,
        labels=splits.labels,
        size=(config.recipe.height, config.recipe.width),
        task=config.recipe.network.task,
        splits=splits,
        origin=origin_of(run, config, splits.dataset or "", splits.labels),
        precisions=precisions,
        max_loss=max_loss,
        force=force,
        say=say,
    )
