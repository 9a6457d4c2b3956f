"""Proves that the fp32 file computes the trained network: onnxruntime against torch in float64."""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quatserve.export.graph import PROBABILITY, ROAD_LEVELS
from quatserve.export.proof.runtime import run, session_of, with_output
from quatserve.service.artifact import OUTPUT_NAMES, Parity, Task
from quatserve.training.data.augment import PIXEL_SCALE
from quatserve.training.errors import UserError
from quatserve.training.loop.prediction import Images
from quatserve.training.networks.residual import Network

BATCHES = (1, 2, 7, 32)
PROBABILITY_BOUND = 1e-5
LEVEL_BOUND = 1
ROW_BOUND = 1e-6  # between an image in a batch and the same image alone
Values = NDArray[np.float64]


class ProofError(UserError):
    """The file differs from the network. Nothing is written."""


def prove(network: Network, model: bytes, images: Images) -> Parity:
    """Compare all images in batches of 1, 2, 7 and 32. Return the largest differences or raise ProofError."""
    task = Task(network.config.task)
    expected = reference(network, images)
    found = _outputs(model if task is Task.CLASSIFICATION else with_output(model, PROBABILITY), task, images)
    difference = max(_difference(expected, values, batch) for batch, values in found.items())
    _check_rows(found)
    levels = _levels(expected, model, images) if task is Task.SEGMENTATION else None
    return Parity(max_difference=difference, max_levels=levels, images=len(images), batches=BATCHES)


@torch.no_grad()
def reference(network: Network, images: Images) -> Values:
    """Probabilities of the unfolded network in float64, (N, classes) or (N, H, W), one image at a time."""
    network = copy.deepcopy(network).double()
    logits = torch.cat([network(_normalised(image)) for image in torch.from_numpy(images)])
    probabilities = logits.softmax(1) if network.config.task == "classification" else logits[:, 0].sigmoid()
    values: Values = probabilities.numpy()
    if not np.isfinite(values).all():
        raise ProofError("the trained network itself gives numbers that are not finite: train it again")
    return values


def _normalised(image: torch.Tensor) -> torch.Tensor:
    return image.permute(2, 0, 1)[None].double() / PIXEL_SCALE - 1


def _outputs(model: bytes, task: Task, images: Images) -> dict[int, NDArray[np.float32]]:
    """Probabilities by batch size; images are repeated to fill a batch."""
    session = session_of(model)
    output = PROBABILITY if task is Task.SEGMENTATION else OUTPUT_NAMES[task]
    return {batch: run(session, output, _repeated(images, batch), batch) for batch in BATCHES}


def _repeated(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """`rows`, repeated from the first if there are fewer than `count`."""
    return rows[np.arange(max(count, len(rows))) % len(rows)]


def _difference(expected: Values, found: NDArray[np.float32], batch: int) -> float:
    difference = float(np.abs(_repeated(expected, len(found)) - found).max())
    if not difference <= PROBABILITY_BOUND:  # True for NaN
        raise ProofError(
            f"the folded fp32 graph differs from the network by {difference:.3g} in batches of {batch}, "
            f"and {PROBABILITY_BOUND:g} is allowed: the fold or the runtime is wrong, nothing is written"
        )
    return difference


def _check_rows(found: dict[int, NDArray[np.float32]]) -> None:
    """Each row of a batch must equal the result of its image alone."""
    for batch, rows in found.items():
        apart = float(np.abs(rows - _repeated(found[1], len(rows))).max())
        if not apart <= ROW_BOUND:
            raise ProofError(f"rows of a batch of {batch} differ by {apart:.3g} from the images alone")


def _levels(expected: Values, model: bytes, images: Images) -> int:
    """The largest difference between the served uint8 map and the rounded map of the network."""
    session, rounded = session_of(model), np.round(ROAD_LEVELS * expected).astype(int)
    levels = 0
    for batch in BATCHES:
        maps = run(session, OUTPUT_NAMES[Task.SEGMENTATION], _repeated(images, batch), batch)
        levels = max(levels, int(np.abs(_repeated(rounded, len(maps)) - maps).max()))
    if levels > LEVEL_BOUND:
        raise ProofError(f"the road map differs by {levels} levels, and {LEVEL_BOUND} is allowed")
    return levels
