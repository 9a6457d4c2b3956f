"""The parity proof accepts the network's own file and refuses every other."""

import dataclasses

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from quatserve.export.folding import fold
from quatserve.export.graph import write_graph
from quatserve.export.interface import Interface
from quatserve.export.proof.parity import ProofError, prove, reference
from quatserve.export.scenes import synthetic
from quatserve.service.artifact import Precision, Task
from quatserve.training.loop.prediction import predictor
from quatserve.training.networks.residual import Network, NetworkConfig
from tests.export.tiny import pictures, randomised

SIZE = (12, 16)
CONFIGS = [NetworkConfig(width=8, depth=1), NetworkConfig(width=8, depth=1, task="segmentation")]
parametrized = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.task)


def interface(config: NetworkConfig) -> Interface:
    height, width = SIZE
    return Interface(task=Task(config.task), height=height, width=width)


def written(network: Network) -> onnx.ModelProto:
    return write_graph(fold(network), interface(network.config), Precision.FP32)


def head_bias(config: NetworkConfig) -> str:
    return "head.2.bias" if config.task == "classification" else "head.0.bias"


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
    parity = prove(network, written(network).SerializeToString(), synthetic(9, *SIZE), interface(config))
    assert 0 < parity.max_difference < 1e-6
    assert (parity.images, parity.batches) == (9, (1, 2, 7, 32))
    assert parity.max_levels in ((None,) if config.task == "classification" else (0, 1))


@parametrized
def test_a_slightly_changed_weight_is_refused(config: NetworkConfig) -> None:
    network = randomised(config)
    with pytest.raises(ProofError, match="differs from the network by"):
        prove(
            network,
            changed(written(network), head_bias(config), 1e-3),
            synthetic(6, *SIZE),
            interface(config),
        )


@parametrized
def test_a_file_of_nan_is_refused(config: NetworkConfig) -> None:
    network = randomised(config)
    with pytest.raises(ProofError, match="differs from the network by nan"):
        prove(
            network,
            changed(written(network), head_bias(config), np.nan),
            synthetic(6, *SIZE),
            interface(config),
        )


def test_a_wrong_number_of_levels_is_refused() -> None:
    """The logits are right, and the number of levels is wrong."""
    network, config = randomised(CONFIGS[1]), CONFIGS[1]
    model = written(network)
    scale = next(node for node in reversed(model.graph.node) if node.op_type == "Mul").input[1]
    with pytest.raises(ProofError, match="levels"):
        prove(network, changed(model, scale, -60), synthetic(6, *SIZE), interface(config))


def test_a_sure_networks_logits_are_compared() -> None:
    """Its probabilities are 0 and 1 whatever its logits, so they prove nothing."""
    network = randomised(CONFIGS[0])
    with torch.no_grad():
        network.state_dict()["head.2.weight"].mul_(1e4)
        network.state_dict()["head.2.bias"][0] = 1e6
    model = changed(written(network), "head.2.bias", 100)
    with pytest.raises(ProofError, match=r"differs from the network by 100 .* logits up to 9.98e\+05"):
        prove(network, model, synthetic(6, *SIZE), interface(CONFIGS[0]))


def test_wrong_normalisation_is_refused() -> None:
    network, config = randomised(CONFIGS[0]), CONFIGS[0]
    expected = dataclasses.replace(interface(config), mean=(0.5, 0.5, 0.4))
    with pytest.raises(ProofError, match="differs from the network by"):
        prove(network, written(network).SerializeToString(), synthetic(6, *SIZE), expected)


def test_a_network_that_is_not_finite_is_refused() -> None:
    network = randomised(CONFIGS[0])
    model = written(network).SerializeToString()
    with torch.no_grad():
        network.state_dict()["head.2.bias"][0] = np.inf
    with pytest.raises(ProofError, match="not finite"):
        prove(network, model, synthetic(6, *SIZE), interface(CONFIGS[0]))


@parametrized
def test_reference_is_what_training_evaluates(config: NetworkConfig) -> None:
    """Same normalisation, softmax or sigmoid, and shape, up to fp32 rounding."""
    network, images = randomised(config), pictures(3, *SIZE)
    _, expected = reference(network, images, interface(config))
    found = predictor(network, torch.device("cpu"))(images)
    if config.task == "classification":
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:
        assert np.abs(found.astype(int) - expected[:, 0]).max() <= 1
