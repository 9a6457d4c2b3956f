"""The written graphs: their operators, their interface, and what an independent runtime makes of them."""

from functools import cache

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from quatserve.export.folding import fold
from quatserve.export.graph import IR_VERSION, LOGITS, OPSET, write_graph
from quatserve.export.interface import Interface
from quatserve.export.precision.int8 import quantise
from quatserve.export.proof.contract import allowed_operators, check_graph, operators
from quatserve.export.proof.parity import reference
from quatserve.export.proof.runtime import run, session_of
from quatserve.service.artifact import Precision, Task
from quatserve.service.errors import ArtifactError
from quatserve.training.networks.residual import NetworkConfig
from tests.export.folding.test_paper_networks import title
from tests.export.tiny import pictures, randomised

SIZE = (12, 16)
ROAD = NetworkConfig(width=16, depth=1, task="segmentation")
CLASSES = NetworkConfig(width=16, depth=1)
KINDS = [
    CLASSES,
    ROAD,
    NetworkConfig(width=16, depth=1, algebra="real"),
    NetworkConfig(width=16, depth=1, task="segmentation", whiten=False, dilations=(1, 2, 4)),
    NetworkConfig(width=16, depth=1, encoding="grey"),
]
# Written out once more, so that a change of the contract is a change of two places.
CONTRACT = {
    *("Cast", "Transpose", "Mul", "Add", "Sub", "Div"),
    *("Conv", "Relu", "Concat", "GlobalAveragePool", "ReduceMean", "Flatten", "Gemm"),
    *("Softmax", "Sigmoid", "Round", "Squeeze"),
}


def graph(config: NetworkConfig, precision: Precision = Precision.FP32) -> onnx.ModelProto:
    return onnx.load_from_string(content(config, precision))


@cache
def content(config: NetworkConfig, precision: Precision) -> bytes:
    if precision is Precision.INT8:
        model = quantise(content(config, Precision.FP32), pictures(8, *SIZE))
    else:
        model = write_graph(fold(randomised(config)), interface(config), precision)
    return bytes(model.SerializeToString())


def interface(config: NetworkConfig) -> Interface:
    height, width = SIZE
    return Interface(task=Task(config.task), height=height, width=width)


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("config", KINDS, ids=title)
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
        else helper.make_tensor_value_info("heatmap", TensorProto.UINT8, ["batch", 1, *SIZE])
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
    _, expected = reference(network, images, interface(config))
    if config is CLASSES:
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:
        assert np.abs(expected.astype(int) - found).max() <= 1


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


@pytest.mark.parametrize("config", [CLASSES, ROAD], ids=title)
def test_the_graph_says_nothing_of_where_it_was_written(config: NetworkConfig) -> None:
    """The exporter's notes quote source lines with their paths."""
    model = graph(config)
    assert b".py" not in model.SerializeToString()
    assert (model.producer_name, model.producer_version) == ("quatserve", "")
    assert not model.graph.value_info


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_nodes_and_weights_are_named_after_the_layers(precision: Precision) -> None:
    model = graph(CLASSES, precision)
    assert {"stem", "blocks.0.norm1", "blocks.2.shortcut", "head.2"} <= {
        node.name for node in model.graph.node
    }
    assert "blocks.0.conv1.weight" in {tensor.name for tensor in model.graph.initializer}
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    assert softmax.input[0] == LOGITS


def test_weights_that_are_not_finite_are_refused() -> None:
    model = graph(CLASSES)
    weight = next(t for t in model.graph.initializer if t.name == "stem.bias")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full(16, np.nan, np.float32), "stem.bias"))
    with pytest.raises(ArtifactError, match=r"stem\.bias"):
        check_graph(model, Precision.FP32)
