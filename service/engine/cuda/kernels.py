"""Which operators of a graph have no CUDA kernel: asked before a session is made.

onnxruntime would only say that some operators are left to the CPU, not which.
"""

import onnxruntime as ort

from quatserve.service.artifact import Precision
from quatserve.service.engine.session import CPU, load_graph
from quatserve.service.errors import DeviceUnavailableError

# Of onnxruntime-gpu 1.31, for the types that a folded network may hold: what `quatserve build` writes, and
# what other image networks are made of.
CUDA_KERNELS = frozenset(
    {
        "Add", "Cast", "Concat", "Conv", "Div", "Flatten", "Gemm", "GlobalAveragePool", "Max", "Mul",
        "ReduceMean", "Relu", "Round", "Sigmoid", "Softmax", "Squeeze", "Sub", "Transpose",
        "AveragePool", "BatchNormalization", "Clip", "ConvTranspose", "Gather", "Identity", "LeakyRelu",
        "MatMul", "MaxPool", "Min", "Reshape", "Resize", "Slice", "Split", "Tanh", "Unsqueeze",
    }
)  # fmt: skip


def operators(graph: bytes) -> set[str]:
    """The operators of a graph as onnxruntime reads them; ArtifactError if it cannot."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = load_graph(graph, options, [CPU])
    parts = session.get_provider_graph_assignment_info()
    nodes = [node for part in parts for node in part.get_nodes()]
    return {f"{node.domain}.{node.op_type}" if node.domain else node.op_type for node in nodes}


def check_kernels(graph: bytes, precision: Precision) -> None:
    """Raise DeviceUnavailableError if CUDA cannot run all of the graph, or ArtifactError if it is none."""
    if precision is Precision.INT8:
        raise DeviceUnavailableError(
            "int8 does not run on CUDA, for onnxruntime has no CUDA kernel for DequantizeLinear of int32: "
            "take --precision fp16 or fp32, or --device cpu"
        )
    if missing := operators(graph) - CUDA_KERNELS:
        raise DeviceUnavailableError(
            f"onnxruntime has no CUDA kernel for {', '.join(sorted(missing))}: take --device cpu"
        )
