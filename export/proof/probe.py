"""The probe: eight inputs with the outputs expected of them, which every host computes before it serves.

No frame of KITTI is among them: its licence would be that of the artifact's every copy.
"""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatserve.export.datasets import Material
from quatserve.export.proof.runtime import run, session_of
from quatserve.export.proof.scenes import synthetic
from quatserve.service.artifact import Precision, Task
from quatserve.training.loop.prediction import Images

COUNT, REAL = 8, 4
Outputs = dict[Precision, NDArray[Any]]
FLOORS = {  # least tolerances, in units of the output: probabilities, or levels of 255
    Task.CLASSIFICATION: {Precision.FP32: 1e-4, Precision.FP16: 0.01, Precision.INT8: 0.02},
    Task.SEGMENTATION: {Precision.FP32: 1.0, Precision.FP16: 3.0, Precision.INT8: 6.0},
}
MARGINS = {Precision.FP16: 4.0, Precision.INT8: 1.5}  # times what differs here between two ways to run it


def probe_images(task: Task, material: Material, height: int, width: int) -> Images:
    """Uint8 (8, height, width, 3): for a classifier half of them real."""
    if task is Task.SEGMENTATION:
        return synthetic(COUNT, height, width)
    return np.concatenate([material.samples.images[:REAL], synthetic(COUNT - REAL, height, width)])


def pack_probe(images: Images, outputs: Outputs) -> bytes:
    stream = io.BytesIO()
    arrays = {precision.value: values for precision, values in outputs.items()}
    np.savez_compressed(stream, allow_pickle=False, images=images, **arrays)
    return stream.getvalue()


def tolerance(
    task: Task, precision: Precision, model: bytes, output: str, images: Images, outputs: Outputs
) -> float:
    """How far another provider may be off: a margin above how far arithmetic moves the outputs here.

    fp16 is measured against fp32: a CPU computes fp16 convolutions in fp32, a GPU does not. int8 is measured
    against the same file run without fused integer kernels, which is about as far as another processor, whose
    integer sums are exact too, can be.
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
