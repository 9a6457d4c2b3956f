"""The written graphs: their operators, their interface, and what an independent runtime makes of them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from quatserve.export.folded import fold
from quatserve.export.graph import IR_VERSION, OPSET, write_graph
from quatserve.export.precision.int8 import quantise
from quatserve.export.proof.contract import allowed_operators, check_graph, operators
from quatserve.export.proof.parity import reference
from quatserve.export.proof.runtime import run, session_of
from quatserve.service.artifact import Precision
from quatserve.service.errors import ArtifactError
from quatserve.training.networks.residual import NetworkConfig
from tests.export.test_folding import every_config, title
from tests.export.tiny import pictures, randomised

SIZE = (12, 16)
ROAD = NetworkConfig(width=8, depth=1, task="segmentation")
CLASSES = NetworkConfig(width=8, depth=1)
# Written out once more, so that a change of the contract is a change of two places.
CONTRACT = {
    *("Cast", "Transpose", "Mul", "Add", "Sub", "Div"),
    *("Conv", "Relu", "Concat", "GlobalAveragePool", "ReduceMean", "Flatten", "Gemm"),
    *("Softmax", "Sigmoid", "Round", "Squeeze"),
}


def graph(config: NetworkConfig, precision: Precision = Precision.FP32) -> onnx.ModelProto:
    if precision is Precision.INT8:
        return quantise(graph(config).SerializeToString(), pictures(8, *SIZE))
    return write_graph(fold(randomised(config)), *SIZE, precision)


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("config", every_config(), ids=title)
def test_only_operators_of_the_contract(config: NetworkConfig, precision: Precision) -> None:
    model = graph(config, precision)
    check_graph(model, precision)
    extra = {"QuantizeLinear", "DequantizeLinear"} if precision is Precision.INT8 else set()
    assert set(operators(model)) <= CONTRACT | extra


def test_the_list_of_operators_is_the_contracts() -> None:
    assert allowed_operators(Precision.FP32) == CONTRACT


@pytest.mark.parametrize(("operator", "domain"), [("Identity", ""), ("Conv", "com.microsoft")])
def test_any_other_operator_is_refused(operator: str, domain: str) -> None:
    model = graph(CLASSES)
    model.graph.node.append(helper.make_node(operator, ["image"], ["other"], domain=domain))
    with pytest.raises(ArtifactError, match=operator):
        check_graph(model, Precision.FP32)


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("config", [CLASSES, ROAD], ids=title)
def test_every_precision_has_the_same_interface(config: NetworkConfig, precision: Precision) -> None:
    model = graph(config, precision)
    (image,), (output,) = model.graph.input, model.graph.output
    assert image == helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", *SIZE, 3])
    expected = (
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10])
        if config is CLASSES
        else helper.make_tensor_value_info("road", TensorProto.UINT8, ["batch", *SIZE])
    )
    assert output == expected
    assert [(o.domain, o.version) for o in model.opset_import] == [("", OPSET)]
    assert (OPSET, model.ir_version) == (18, IR_VERSION)
    assert model.ir_version <= 10


@pytest.mark.parametrize("config", [CLASSES, ROAD], ids=title)
def test_another_runtime_agrees(config: NetworkConfig) -> None:
    """ONNX's own evaluator, in NumPy, against the unfolded network."""
    network, images = randomised(config), pictures(2, *SIZE)
    (found,) = map(np.asarray, ReferenceEvaluator(graph(config)).run(None, {"images": images}))
    expected = reference(network, images)
    if config is CLASSES:
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:
        assert np.abs(np.round(255 * expected) - found).max() <= 1


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("config", [CLASSES, ROAD], ids=title)
def test_rows_of_a_batch_are_the_single_results(config: NetworkConfig, precision: Precision) -> None:
    images = pictures(7, *SIZE)
    model = graph(config, precision)
    session, output = session_of(model.SerializeToString()), model.graph.output[0].name
    np.testing.assert_array_equal(run(session, output, images, 7), run(session, output, images, 1))


@pytest.mark.parametrize("config", [CLASSES, ROAD], ids=title)
def test_other_precisions_are_close(config: NetworkConfig) -> None:
    images = pictures(16, *SIZE, seed=1)
    found = {
        precision: run(session_of(model.SerializeToString()), model.graph.output[0].name, images).astype(
            float
        )
        for precision, model in ((p, graph(config, p)) for p in Precision)
    }
    scale = 1 if config is CLASSES else 255
    assert np.abs(found[Precision.FP16] - found[Precision.FP32]).max() <= 0.02 * scale
    assert np.abs(found[Precision.INT8] - found[Precision.FP32]).max() <= 0.15 * scale
    assert np.abs(found[Precision.INT8] - found[Precision.FP32]).max() > 0


def test_weights_that_are_not_finite_are_refused() -> None:
    model = graph(CLASSES)
    weight = next(t for t in model.graph.initializer if t.name == "stem.bias")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full(8, np.nan, np.float32), "stem.bias"))
    with pytest.raises(ArtifactError, match=r"stem\.bias"):
        check_graph(model, Precision.FP32)
