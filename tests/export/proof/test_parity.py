"""The parity proof accepts the network's own file and refuses every other."""

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from quatserve.export.folded import fold
from quatserve.export.graph import write_graph
from quatserve.export.proof.parity import ProofError, prove, reference
from quatserve.export.proof.scenes import synthetic
from quatserve.service.artifact import Precision
from quatserve.training.loop.prediction import predictor
from quatserve.training.networks.residual import Network, NetworkConfig
from tests.export.tiny import pictures, randomised

SIZE = (12, 16)
CONFIGS = [NetworkConfig(width=8, depth=1), NetworkConfig(width=8, depth=1, task="segmentation")]
parametrized = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.task)


def written(network: Network) -> onnx.ModelProto:
    return write_graph(fold(network), *SIZE, Precision.FP32)


def changed(model: onnx.ModelProto, name: str, by: float) -> bytes:
    """The file with one changed constant."""
    tensor = next(t for t in model.graph.initializer if t.name == name)
    values = numpy_helper.to_array(tensor).copy()
    values.flat[0] += by
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    return bytes(model.SerializeToString())


@parametrized
def test_the_networks_own_file_passes(config: NetworkConfig) -> None:
    network = randomised(config)
    parity = prove(network, written(network).SerializeToString(), synthetic(9, *SIZE))
    assert 0 < parity.max_difference < 1e-6
    assert (parity.images, parity.batches) == (9, (1, 2, 7, 32))
    assert parity.max_levels in ((None,) if config.task == "classification" else (0, 1))


@parametrized
def test_a_slightly_changed_weight_is_refused(config: NetworkConfig) -> None:
    network = randomised(config)
    with pytest.raises(ProofError, match="differs from the network by"):
        prove(network, changed(written(network), "head.bias", 1e-3), synthetic(6, *SIZE))


@parametrized
def test_a_file_of_nan_is_refused(config: NetworkConfig) -> None:
    network = randomised(config)
    with pytest.raises(ProofError, match="differs from the network by nan"):
        prove(network, changed(written(network), "head.bias", np.nan), synthetic(6, *SIZE))


def test_a_wrong_number_of_levels_is_refused() -> None:
    """The probability before rounding is right, and the number of levels is wrong."""
    network = randomised(CONFIGS[1])
    with pytest.raises(ProofError, match="levels"):
        prove(network, changed(written(network), "levels", -60), synthetic(6, *SIZE))


def test_a_network_that_is_not_finite_is_refused() -> None:
    network = randomised(CONFIGS[0])
    model = written(network).SerializeToString()
    with torch.no_grad():
        network.state_dict()["head.2.bias"][0] = np.inf
    with pytest.raises(ProofError, match="not finite"):
        prove(network, model, synthetic(6, *SIZE))


@parametrized
def test_reference_is_what_training_evaluates(config: NetworkConfig) -> None:
    """Same normalisation, softmax or sigmoid, and shape, up to fp32 rounding."""
    network, images = randomised(config), pictures(3, *SIZE)
    expected = reference(network, images)
    found = predictor(network, torch.device("cpu"))(images)
    if config.task == "classification":
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:
        assert np.abs(found - np.round(255 * expected)).max() <= 1
