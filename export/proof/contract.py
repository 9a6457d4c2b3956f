"""Checks a graph against the contract: operators, names, types and sizes that the service relies on."""

from collections import Counter

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from quatserve.export.graph import OPSET
from quatserve.service.artifact import INPUT_NAME, Description, Precision, Task
from quatserve.service.errors import ArtifactError

MAX_IR_VERSION = 10  # runtimes of two years ago read it
PROLOGUE = {"Cast", "Transpose", "Mul", "Add", "Sub", "Div"}
BODY = {"Conv", "Relu", "Add", "Concat", "GlobalAveragePool", "ReduceMean", "Flatten", "Gemm"}
EPILOGUE = {"Softmax", "Sigmoid", "Mul", "Round", "Cast", "Squeeze"}
CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}
QUANTISATION = {"QuantizeLinear", "DequantizeLinear"}
OUTPUT_TYPES = {Task.CLASSIFICATION: TensorProto.FLOAT, Task.SEGMENTATION: TensorProto.UINT8}


def operators(model: onnx.ModelProto) -> Counter[str]:
    """Count each operator; names of other domains are prefixed with the domain."""
    return Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in model.graph.node)


def allowed_operators(precision: Precision) -> set[str]:
    """Those of our own networks."""
    return PROLOGUE | BODY | EPILOGUE | (QUANTISATION if precision is Precision.INT8 else set())


def check_graph(
    model: onnx.ModelProto, precision: Precision, described: Description | None = None, *, ours: bool = True
) -> None:
    """Raise ArtifactError if the graph violates the contract or differs from `described`.

    Networks of ours use a short list of operators; anybody's may use all of ONNX but control flow.
    """
    allowed = allowed_operators(precision)
    found = operators(model).keys()
    foreign = found - allowed if ours else {op for op in found if "." in op or op in CONTROL_FLOW}
    if foreign or model.functions:
        names = sorted(foreign) or sorted(function.name for function in model.functions)
        raise ArtifactError(f"{precision}: operators outside the contract: {', '.join(names)}")
    versions = {imported.domain: imported.version for imported in model.opset_import}
    if versions != {"": OPSET} or model.ir_version > MAX_IR_VERSION:
        raise ArtifactError(
            f"{precision}: opset {versions}, IR {model.ir_version}: not {OPSET} and <= {MAX_IR_VERSION}"
        )
    _check_weights(model, precision)
    if described:
        _check_interface(model, precision, described)


def _check_weights(model: onnx.ModelProto, precision: Precision) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            raise ArtifactError(f"{precision}: {tensor.name} is kept in another file")
        if not np.isfinite(numpy_helper.to_array(tensor)).all():
            raise ArtifactError(f"{precision}: {tensor.name} holds numbers that are not finite")


def _check_interface(model: onnx.ModelProto, precision: Precision, described: Description) -> None:
    size, classes = (described.height, described.width), len(described.labels)
    row = (classes, *size) if described.task is Task.SEGMENTATION else (classes,)
    expected = [
        (INPUT_NAME, TensorProto.UINT8, (*size, 3)),
        (described.output_name, OUTPUT_TYPES[described.task], row),
    ]
    found = [_signature(value) for value in (*model.graph.input, *model.graph.output)]
    if found != expected:
        raise ArtifactError(f"{precision}: the graph has {found}, model.json promises {expected}")


def _signature(value: onnx.ValueInfoProto) -> tuple[str, int, tuple[int, ...]]:
    """Name, element type and sizes without the batch axis; () if the batch is not dynamic."""
    tensor = value.type.tensor_type
    batch, *sizes = tensor.shape.dim
    return value.name, tensor.elem_type, tuple(d.dim_value for d in sizes) if batch.dim_param else ()
