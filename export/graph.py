"""The folded network as an ONNX graph, node by node: uint8 pixels in, probabilities or a uint8 road map out.

    images -> x / 127.5 - 1 -> convolutions -> softmax                     -> probabilities
                                            -> sigmoid -> round(255 p)     -> road

Written with `onnx.helper` from the folded tensors: the operators and names are ours, and nothing is left to
an exporter's optimiser. Names follow the network's: the output of node `blocks.0.conv1` is `blocks.0.conv1`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from quatserve.export.folded import FoldedBlock, FoldedComponents, FoldedNetwork
from quatserve.service.artifact import INPUT_NAME, OUTPUT_NAMES, Precision, Task
from quatserve.training.data.augment import PIXEL_SCALE

OPSET, IR_VERSION = 18, 8  # both of onnx 1.13, early 2023
PROBABILITY = "probability"  # of road, before it is rounded
ROAD_LEVELS = 255
FLOAT_TYPES: dict[Precision, tuple[int, type[np.floating[Any]]]] = {
    Precision.FP32: (TensorProto.FLOAT, np.float32),
    Precision.FP16: (TensorProto.FLOAT16, np.float16),
}


def write_graph(network: FoldedNetwork, height: int, width: int, precision: Precision) -> onnx.ModelProto:
    """A complete model in fp32 or fp16; batch free, height and width fixed."""
    writer = _Writer(precision)
    x = _prologue(writer)
    x = writer.relu(writer.convolution(_components(writer, network.components, x), network.stem, "stem"))
    for i, block in enumerate(network.blocks):
        assert isinstance(block, FoldedBlock)
        x = _block(writer, block, x, f"blocks.{i}")
    task = Task(network.config.task)
    (_road if task is Task.SEGMENTATION else _classes)(writer, network.head, x)
    return _model(writer, _output(task, network.head.out_channels, height, width), height, width)


class _Writer:
    """Nodes and constants in the order of their use; every method returns the name of what it computes."""

    def __init__(self, precision: Precision):
        self.element, self.dtype = FLOAT_TYPES[precision]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, operator: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def constant(self, name: str, values: NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def relu(self, x: str) -> str:
        return self.node("Relu", [x], f"{x}.relu")

    def convolution(self, x: str, layer: nn.Conv2d, name: str) -> str:
        inputs = [x, *self._weights(layer, name, layer.weight.shape)]
        return self.node("Conv", inputs, name, **_geometry(layer))

    def dense(self, x: str, layer: nn.Conv2d, name: str) -> str:
        return self.node("Gemm", [x, *self._weights(layer, name, layer.weight.shape[:2])], name, transB=1)

    def cast(self, x: str, element: int, name: str) -> str:
        return self.node("Cast", [x], name, to=element)

    def _weights(self, layer: nn.Conv2d, name: str, shape: Sequence[int]) -> list[str]:
        weight = layer.weight.numpy().reshape(shape).astype(self.dtype)
        names = [self.constant(f"{name}.weight", weight)]
        if layer.bias is not None:
            names.append(self.constant(f"{name}.bias", layer.bias.numpy().astype(self.dtype)))
        return names


def _prologue(writer: _Writer) -> str:
    """Pixels to [-1, 1]: transposed while they are bytes, scaled in fp32 whatever the precision."""
    x = writer.node("Transpose", [INPUT_NAME], "pixels", perm=[0, 3, 1, 2])
    x = writer.cast(x, TensorProto.FLOAT, "pixels.float")
    scale = writer.constant("pixels.scale", np.array(1 / PIXEL_SCALE, np.float32))
    offset = writer.constant("pixels.offset", np.array(-1, np.float32))
    x = writer.node("Add", [writer.node("Mul", [x, scale], "pixels.scaled"), offset], "image")
    return x if writer.element == TensorProto.FLOAT else writer.cast(x, writer.element, "image.half")


def _components(writer: _Writer, components: FoldedComponents | None, image: str) -> str:
    if components is None:
        return image
    x = writer.relu(writer.convolution(image, components.expand, "components.expand"))
    x = writer.relu(writer.convolution(x, components.conv1, "components.conv1"))
    x = writer.convolution(x, components.conv2, "components.conv2")
    return writer.node("Concat", [image, x], "components", axis=1)


def _block(writer: _Writer, block: FoldedBlock, x: str, name: str) -> str:
    residual = writer.relu(writer.convolution(x, block.opening, f"{name}.opening"))
    residual = writer.relu(writer.convolution(residual, block.conv1, f"{name}.conv1"))
    residual = writer.convolution(residual, block.conv2, f"{name}.conv2")
    if block.shortcut is None:
        return writer.node("Add", [x, residual], name)
    shortcut = writer.convolution(x, block.shortcut, f"{name}.shortcut")
    return writer.node("Concat", [shortcut, residual], name, axis=1)


def _classes(writer: _Writer, head: nn.Conv2d, x: str) -> None:
    x = writer.node("Flatten", [writer.node("GlobalAveragePool", [x], "pool")], "features", axis=1)
    logits = _as_float(writer, writer.dense(x, head, "head"))
    writer.node("Softmax", [logits], OUTPUT_NAMES[Task.CLASSIFICATION], axis=1)


def _road(writer: _Writer, head: nn.Conv2d, x: str) -> None:
    logits = _as_float(writer, writer.convolution(x, head, "head"))
    axes = writer.constant("head.axes", np.array([1], np.int64))
    p = writer.node("Sigmoid", [writer.node("Squeeze", [logits, axes], "logits")], PROBABILITY)
    levels = writer.constant("levels", np.array(ROAD_LEVELS, np.float32))
    rounded = writer.node("Round", [writer.node("Mul", [p, levels], "road.scaled")], "road.rounded")
    writer.cast(rounded, TensorProto.UINT8, OUTPUT_NAMES[Task.SEGMENTATION])


def _as_float(writer: _Writer, x: str) -> str:
    return x if writer.element == TensorProto.FLOAT else writer.cast(x, TensorProto.FLOAT, f"{x}.float")


def _geometry(layer: nn.Conv2d) -> dict[str, Any]:
    assert isinstance(layer.padding, tuple)
    return {
        "kernel_shape": layer.kernel_size,
        "strides": layer.stride,
        "pads": [*layer.padding, *layer.padding],
        "dilations": layer.dilation,
        "group": layer.groups,
    }


def _output(task: Task, classes: int, height: int, width: int) -> onnx.ValueInfoProto:
    if task is Task.CLASSIFICATION:
        return helper.make_tensor_value_info(OUTPUT_NAMES[task], TensorProto.FLOAT, ["batch", classes])
    return helper.make_tensor_value_info(OUTPUT_NAMES[task], TensorProto.UINT8, ["batch", height, width])


def _model(writer: _Writer, output: onnx.ValueInfoProto, height: int, width: int) -> onnx.ModelProto:
    images = helper.make_tensor_value_info(INPUT_NAME, TensorProto.UINT8, ["batch", height, width, 3])
    graph = helper.make_graph(writer.nodes, "folded", [images], [output], writer.constants)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="quatserve",
    )
    onnx.checker.check_model(model, full_check=True)
    return model
