"""Proves that the fp32 file computes the given network: onnxruntime against torch in float64.

Logits are compared, because probabilities of a sure network are all 0 or 1, whatever its logits.
"""

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quatserve.export.graph import LOGITS
from quatserve.export.interface import Interface, Served
from quatserve.export.proof.runtime import run, session_of, with_output
from quatserve.service.artifact import OUTPUT_NAMES, Parity, Task
from quatserve.training.errors import UserError
from quatserve.training.loop.prediction import Images

BATCHES = (1, 2, 7, 32)
LOGIT_BOUND = 1e-5  # times the largest logit
ROW_BOUND = 1e-6  # times the largest logit; between an image in a batch and the same image alone
OUTPUT_BOUNDS = {Task.CLASSIFICATION: 1e-5, Task.SEGMENTATION: 1.0}  # of a probability; levels of 255
Values = NDArray[Any]


class ProofError(UserError):
    """The file differs from the network. Nothing is written."""


def prove(network: nn.Module, model: bytes, images: Images, interface: Interface) -> Parity:
    """Compare all images in batches of 1, 2, 7 and 32. Return the largest differences or raise ProofError."""
    logits, output = reference(network, images, interface)
    scale = float(np.abs(logits).max())
    session, name = session_of(with_output(model, LOGITS)), OUTPUT_NAMES[interface.task]
    found = {batch: run(session, LOGITS, _repeated(images, batch), batch) for batch in BATCHES}
    difference = max(_logit_difference(logits, rows, batch, scale) for batch, rows in found.items())
    _check_rows(found, scale)
    apart = _output_difference(output, run(session, name, images), interface.task)
    return Parity(
        max_difference=difference,
        max_logit=scale,
        max_levels=int(apart) if interface.task is Task.SEGMENTATION else None,
        images=len(images),
        batches=BATCHES,
    )


@torch.no_grad()
def reference(network: nn.Module, images: Images, interface: Interface) -> tuple[Values, Values]:
    """Logits and served outputs of the unfolded network in float64, one image at a time."""
    served = Served(copy.deepcopy(network).cpu().double(), interface, torch.float64)
    logits = torch.cat([served.logits(image[None]) for image in torch.from_numpy(images)])
    if not logits.isfinite().all():
        raise ProofError("the network itself gives numbers that are not finite: train it again")
    return logits.numpy(), served.output(logits).numpy()


def _repeated(rows: Values, count: int) -> Values:
    """`rows`, repeated from the first if there are fewer than `count`."""
    return rows[np.arange(max(count, len(rows))) % len(rows)]


def _logit_difference(expected: Values, found: Values, batch: int, scale: float) -> float:
    difference = float(np.abs(_repeated(expected, len(found)) - found).max())
    if not difference <= LOGIT_BOUND * scale:  # True for NaN
        raise ProofError(
            f"the fp32 graph differs from the network by {difference:.3g} in batches of {batch}, where "
            f"{LOGIT_BOUND * scale:.3g} is allowed for logits up to {scale:.3g}: the fold or the runtime is "
            "wrong, nothing is written"
        )
    return difference


def _check_rows(found: dict[int, Values], scale: float) -> None:
    """Each row of a batch must equal the result of its image alone."""
    for batch, rows in found.items():
        apart = float(np.abs(rows - _repeated(found[1], len(rows))).max())
        if not apart <= ROW_BOUND * scale:
            raise ProofError(f"rows of a batch of {batch} differ by {apart:.3g} from the images alone")


def _output_difference(expected: Values, found: Values, task: Task) -> float:
    """The largest difference of what is served, in probabilities or levels."""
    apart = float(np.abs(expected.astype(np.float64) - found).max())
    if not apart <= OUTPUT_BOUNDS[task]:
        what = "probabilities differ" if task is Task.CLASSIFICATION else "map differs, in levels,"
        raise ProofError(f"the {what} by {apart:.3g}, and {OUTPUT_BOUNDS[task]:g} is allowed")
    return apart
