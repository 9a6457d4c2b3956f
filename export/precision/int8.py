"""Quantises the fp32 graph to static INT8: 8-bit activations, one weight scale per output channel.

Weights use 7 bits (-64 to 64). A processor without VNNI adds two u8 x s8 products in 16 bits; 2 x 255 x 127
overflows there and 2 x 255 x 64 does not. With 7 bits the sums are exact everywhere, so the same file gives
the same answer on old and new processors.

Only wide convolutions are quantised, and the operators between them; they are nearly all of the work. What
reads few channels (in our networks the learned components and the stem) and the last layer stay in fp32:
quantising them costs more accuracy than everything else together (docs/fold.md).
"""

import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import Tensor

from quatserve.export.graph import IR_VERSION
from quatserve.service.artifact import INPUT_NAME
from quatserve.training.loop.prediction import Images

BETWEEN = {"Relu", "Add", "Concat"}
WIDE = 16  # input channels from which a convolution is quantised
BATCH = 16
PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")  # the graph is already folded: nothing to fuse


def quantise(model: bytes, images: Images) -> onnx.ModelProto:
    """Return the graph in INT8, with activation ranges measured on `images`."""
    source = onnx.load_from_string(model)
    onnx.helper.set_model_props(source, dict([PREPARED]))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.int8.onnx"
        quantize_static(
            source,
            path,
            _Reader(images),
            quant_format=QuantFormat.QDQ,
            nodes_to_quantize=[node.name for node in quantised_nodes(source.graph)],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return _tidied(onnx.load(path), source)


def quantised_layers(model: onnx.ModelProto) -> set[str]:
    """The layers whose weights INT8 rounds, by their names in the folded module."""
    nodes = quantised_nodes(model.graph)
    return {node.input[1].removesuffix(".weight") for node in nodes if node.op_type == "Conv"}


def quantised_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Wide convolutions with a layer behind them, and each operator between layers that reads such a node."""
    weights = {tensor.name: tensor.dims for tensor in graph.initializer}
    inner = _before_a_layer(graph)
    found: list[onnx.NodeProto] = []
    written: set[str] = set()  # by quantised nodes
    for node in graph.node:
        layer = _is_wide(node, weights) and node.output[0] in inner
        if layer or (node.op_type in BETWEEN and written.intersection(node.input)):
            found.append(node)
            written.add(node.output[0])
    return found


def _is_wide(node: onnx.NodeProto, weights: Mapping[str, Sequence[int]]) -> bool:
    """Whether it is a convolution without groups that reads at least WIDE channels."""
    if node.op_type != "Conv" or node.input[1] not in weights:
        return False
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    return groups == 1 and weights[node.input[1]][1] >= WIDE


def _before_a_layer(graph: onnx.GraphProto) -> set[str]:
    """Values from which a further convolution or dense layer is computed."""
    found: set[str] = set()
    for node in reversed(graph.node):
        if node.op_type in ("Conv", "Gemm") or found.intersection(node.output):
            found.update(node.input)
    return found


def with_weights(model: onnx.ModelProto, weights: Mapping[str, Tensor]) -> onnx.ModelProto:
    """A copy of the graph with other values in the named weights."""
    copied = copy.deepcopy(model)
    for tensor in copied.graph.initializer:
        if tensor.name in weights:
            values = weights[tensor.name].numpy().astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return copied


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, images: Images):
        self._batches: Iterator[NDArray[np.uint8]] = (
            images[i : i + BATCH] for i in range(0, len(images), BATCH)
        )

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {INPUT_NAME: batch}


def _tidied(model: onnx.ModelProto, source: onnx.ModelProto) -> onnx.ModelProto:
    """Set producer, versions and metadata as in our other graphs, and drop unused domains."""
    del model.metadata_props[:], model.graph.value_info[:], model.opset_import[:]
    model.opset_import.extend(source.opset_import)
    model.producer_name, model.producer_version, model.ir_version = source.producer_name, "", IR_VERSION
    onnx.checker.check_model(model, full_check=True)
    return model
