"""Fills in model.json from the plan and the measurements."""

import hashlib
from math import prod

import onnx
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quatserve.export.artifact.plan import Plan
from quatserve.service.artifact import (
    Description,
    Metric,
    ModelFile,
    Parameters,
    Parity,
    Precision,
    ProbeFile,
    Task,
)
from quatserve.training.networks.counting import count_parameters

FILES = {Precision.FP32: "model.onnx", Precision.FP16: "model.fp16.onnx", Precision.INT8: "model.int8.onnx"}


def describe(
    name: str,
    version: int,
    plan: Plan,
    folded: fx.GraphModule,
    *,
    parity: Parity,
    files: tuple[ModelFile, ...],
    metrics: tuple[Metric, ...],
    probe: bytes,
    fp32: bytes,
) -> Description:
    origin = plan.origin
    return Description(
        name=name,
        version=version,
        task=plan.task,
        summary=origin.summary or _summary(plan),
        network=origin.network,
        algebra=origin.algebra,
        stem_stride=origin.stem_stride,
        labels=plan.labels,
        palette=plan.palette,
        threshold=plan.threshold,
        height=plan.interface.height,
        width=plan.interface.width,
        resize=plan.resize,
        files=files,
        probe=ProbeFile(sha256=hashlib.sha256(probe).hexdigest()),
        metrics=metrics,
        parity=parity,
        parameters=count(plan.network, folded),
        multiply_accumulates=multiply_accumulates(onnx.load_from_string(fp32)),
        training=origin.training,
    )


def model_file(precision: Precision, content: bytes, tolerance: float) -> ModelFile:
    return ModelFile(
        name=FILES[precision],
        precision=precision,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        tolerance=tolerance,
    )


def count(network: nn.Module, folded: fx.GraphModule) -> Parameters:
    total, trainable = count_parameters(network)
    norms = (module for module in network.modules() if isinstance(module, _BatchNorm))
    running = (tensor for norm in norms for tensor in (norm.running_mean, norm.running_var))
    return Parameters(
        total=total + sum(tensor.numel() for tensor in running if tensor is not None),
        trainable=trainable,
        folded=sum(tensor.numel() for tensor in folded.parameters()),
    )


def multiply_accumulates(model: onnx.ModelProto) -> int:
    """Of the convolutions and matrix products of the graph, for one image."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    shapes = {tensor.name: [*tensor.dims] for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        shapes[value.name] = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]  # one image
    return sum(_products(node, shapes) for node in graph.node)


def _products(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> int:
    if node.op_type == "Conv":
        return prod(shapes[node.output[0]]) * prod(shapes[node.input[1]][1:])
    if node.op_type == "ConvTranspose":
        return prod(shapes[node.input[0]]) * prod(shapes[node.input[1]][1:])
    if node.op_type in ("Gemm", "MatMul"):
        return prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    return 0


def _summary(plan: Plan) -> str:
    if plan.task is Task.CLASSIFICATION:
        return f"Sorts pictures into {len(plan.labels)} classes"
    return f"Finds {', '.join(plan.labels[1:] or plan.labels)} in pictures"
