"""INT8 weights: seven bits, one scale per output channel, no saturation."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from quatserve.export.folding import fold
from quatserve.export.graph import write_graph
from quatserve.export.interface import Interface
from quatserve.export.precision.int8 import quantise
from quatserve.export.proof.runtime import run, session_of
from quatserve.service.artifact import Precision, Task
from quatserve.training.networks.residual import NetworkConfig
from tests.export.tiny import pictures, randomised

INTERFACE = Interface(task=Task.CLASSIFICATION, height=16, width=16)


@pytest.fixture(scope="module")
def models() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    fp32 = write_graph(fold(randomised(NetworkConfig(width=16, depth=1))), INTERFACE, Precision.FP32)
    return fp32, quantise(fp32.SerializeToString(), pictures(32, 16, 16))


def arrays(model: onnx.ModelProto) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def test_every_kernel_has_seven_bits_and_a_scale_per_channel(
    models: tuple[onnx.ModelProto, onnx.ModelProto],
) -> None:
    fp32, int8 = map(arrays, models)
    kernels = [name for name in fp32 if name.startswith("blocks.") and name.endswith(".weight")]
    assert len(kernels) == 11
    for name in kernels:
        quantised = int8[f"{name}_quantized"].astype(int)
        scales = int8[f"{name}_scale"]
        assert np.abs(quantised).max() <= 64
        assert scales.shape == (len(fp32[name]),)
        restored = quantised * scales.reshape(-1, *[1] * (quantised.ndim - 1))
        assert np.abs(restored - fp32[name]).max() <= scales.max() / 2 * 1.001


def test_integer_kernels_agree_with_the_float_graph(models: tuple[onnx.ModelProto, onnx.ModelProto]) -> None:
    """Saturation in the fused integer kernels would show as a difference."""
    content, images = models[1].SerializeToString(), pictures(32, 16, 16, seed=2)
    fused = run(session_of(content), "probabilities", images)
    plain = run(session_of(content, optimise=False), "probabilities", images)
    assert np.abs(fused - plain).max() < 0.05


def test_ranges_come_from_the_calibration_images() -> None:
    fp32 = write_graph(fold(randomised(NetworkConfig(width=16, depth=1))), INTERFACE, Precision.FP32)
    dark = arrays(quantise(fp32.SerializeToString(), pictures(8, 16, 16) // 8))
    full = arrays(quantise(fp32.SerializeToString(), pictures(8, 16, 16)))
    assert float(dark["relu_2_scale"]) < float(full["relu_2_scale"])


def test_components_stem_and_head_stay_in_fp32(models: tuple[onnx.ModelProto, onnx.ModelProto]) -> None:
    fp32, int8 = map(arrays, models)
    kept = [name for name in fp32 if not name.startswith("blocks.")]
    assert {"components.conv1.weight", "stem.weight", "head.2.weight"} <= set(kept)
    for name in kept:
        np.testing.assert_array_equal(int8[name], fp32[name])
