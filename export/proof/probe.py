"""The probe: eight inputs and their expected outputs, which every host checks before it serves.

It contains no image that is not public: no picture of a user's, and no KITTI frame, under whose licence every
copy of the artifact would then fall.
"""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.export.datasets import Splits
from quatserve.export.proof.runtime import run, session_of
from quatserve.export.scenes import synthetic
from quatserve.service.artifact import Precision, Task
from quatserve.training.loop.prediction import Images

COUNT, REAL = 8, 4
Outputs = dict[Precision, NDArray[Any]]
FLOORS = {  # minimum tolerances, in units of the output: probabilities, or levels of 255
    Task.CLASSIFICATION: {Precision.FP32: 1e-4, Precision.FP16: 0.01, Precision.INT8: 0.02},
    Task.SEGMENTATION: {Precision.FP32: 1.0, Precision.FP16: 3.0, Precision.INT8: 6.0},
}
MARGINS = {
    Precision.FP16: 4.0,
    Precision.INT8: 1.5,
}  # times the difference measured here


def probe_images(splits: Splits, height: int, width: int) -> Images:
    """Uint8 (8, height, width, 3). Half of the images are real if they may be copied."""
    if not splits.public:
        return synthetic(COUNT, height, width)
    return np.concatenate([splits.samples.images[:REAL], synthetic(COUNT - REAL, height, width)])


def pack_probe(images: Images, outputs: Outputs) -> bytes:
    stream = io.BytesIO()
    arrays = {precision.value: values for precision, values in outputs.items()}
    np.savez_compressed(stream, allow_pickle=False, images=images, **arrays)
    return stream.getvalue()


def tolerance(
    task: Task, precision: Precision, model: bytes, output: str, images: Images, outputs: Outputs
) -> float:
    """How far another provider may differ: a margin above the rounding differences measured here.

    fp16 is compared with fp32, because a CPU computes fp16 convolutions in fp32 and a GPU does not. int8 is
    compared with the same file run without fused integer kernels. Integer sums are exact on every processor,
    so another one should differ by about as much.
    """
    floor = FLOORS[task][precision]
    if precision is Precision.FP32:
        return floor
    if precision is Precision.FP16:
        other = outputs[Precision.FP32]
    else:
        other = run(session_of(model, optimise=False), output, images)
    apart = np.abs(outputs[precision].astype(np.float64) - other.astype(np.float64)).max()
    return float(max(floor, np.round(MARGINS[precision] * apart, 3)))
