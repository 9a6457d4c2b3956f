"""Writes a folded module as an ONNX graph: uint8 pixels in, probabilities or uint8 maps out.

    images -> (x / 255 - mean) / std -> folded layers -> logits -> softmax                 -> probabilities
                                                                -> sigmoid -> round(255 p) -> heatmap

`torch.onnx.export` translates, and there is nothing for it to fold. Its names, versions and notes are then
replaced by ours.
"""

import copy
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch import fx, nn
from torch.nn import functional as F

from quatserve.export.interface import Interface, Served
from quatserve.service.artifact import INPUT_NAME, OUTPUT_NAMES, Precision
from quatserve.training.errors import UserError

OPSET, IR_VERSION = 18, 8  # both of onnx 1.13, early 2023
LOGITS = "logits"  # the value before softmax or sigmoid, float32 at every precision
DTYPES = {Precision.FP32: torch.float32, Precision.FP16: torch.float16}
BATCH = "batch"


def write_graph(folded: fx.GraphModule, interface: Interface, precision: Precision) -> onnx.ModelProto:
    """A complete model in fp32 or fp16; the batch is dynamic, height and width are fixed."""
    layers = _with_plain_means(folded).to(DTYPES[precision])
    images = torch.zeros(2, interface.height, interface.width, 3, dtype=torch.uint8)
    try:
        with _quiet():
            program = torch.onnx.export(
                Served(layers, interface, torch.float32).eval(),
                (images,),
                dynamic_shapes=({0: torch.export.Dim(BATCH)},),
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAMES[interface.task]],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
    except Exception as error:
        raise UserError(
            f"{precision}: torch.onnx.export cannot write the network ({_reason(error)})"
        ) from error
    assert program is not None
    _check_rows(program.model.graph.outputs[0])
    return _finished(program.model)


def _check_rows(output: ir.Value) -> None:
    """One row per image, of a size that no image changes."""
    assert output.shape is not None
    batch, *row = output.shape
    if str(batch) != BATCH or not all(isinstance(size, int) for size in row):
        raise UserError(
            f"the network returns {output.shape} for a batch of images: each must have a row of its own"
        )


def _with_plain_means(folded: fx.GraphModule) -> fx.GraphModule:
    """A copy whose global average pools are means: torch decomposes the former into more than one node."""
    copied = copy.deepcopy(folded)
    for node in copied.graph.nodes:
        if _is_global_pool(node, copied):
            node.op, node.target, node.args, node.kwargs = (
                "call_method",
                "mean",
                (node.args[0], (2, 3), True),
                {},
            )
    copied.recompile()
    return copied


def _is_global_pool(node: fx.Node, module: fx.GraphModule) -> bool:
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1))
    return node.target is F.adaptive_avg_pool2d and node.args[1:] in ((1,), ((1, 1),))


def _finished(model: ir.Model) -> onnx.ModelProto:
    for node in model.graph:
        _use_named_operator(node)
        node.metadata_props.clear()  # they quote the source, paths included
    RemoveUnusedNodesPass()(model)
    _rename(model.graph)
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    proto = ir.serde.serialize_model(model)
    del proto.graph.value_info[:]
    proto.producer_name, proto.producer_version, proto.ir_version = "quatserve", "", IR_VERSION
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _use_named_operator(node: ir.Node) -> None:
    """Global means and flattening have operators of their own, which runtimes know best."""
    x, out = node.inputs[0] if node.inputs else None, node.outputs[0].shape
    if x is None or x.shape is None or out is None:
        return
    if node.op_type == "ReduceMean" and len(x.shape) == len(out) == 4 and tuple(out) == (*x.shape[:2], 1, 1):
        _replace(node, "GlobalAveragePool")
    elif node.op_type == "Reshape" and len(out) == 2 < len(x.shape) and x.shape[0] == out[0]:
        _replace(node, "Flatten", ir.AttrInt64("axis", 1))


def _replace(node: ir.Node, operator: str, *attributes: ir.Attr) -> None:
    node.op_type = operator
    node.resize_inputs(1)
    node.attributes.clear()
    for attribute in attributes:
        node.attributes.add(attribute)


def _rename(graph: ir.Graph) -> None:
    """Weights are named as in the module, nodes after their weights, and the logits by their own name."""
    for value in [*graph.initializers.values()]:
        value.name = str(value.name).removeprefix("layers.")
    named: Counter[str] = Counter()
    for node in graph:
        weights = [str(v.name) for v in node.inputs if v is not None and v.is_initializer()]
        if weights and weights[0].endswith(".weight"):
            name = weights[0].removesuffix(".weight")
            node.name = f"{name}.{named[name]}" if named[name] else name
            named[name] += 1
    last = next(node for node in reversed(graph) if node.op_type in ("Softmax", "Sigmoid"))
    logits = last.inputs[0]
    assert logits is not None
    logits.name = LOGITS


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-2] if len(lines) > 1 else "".join(lines)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporter says about libraries that are not installed, and its own deprecations."""
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        registry.setLevel(level)
