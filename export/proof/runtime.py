"""ONNX files as functions of uint8 images, on the CPU."""

from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quatserve.service.artifact import INPUT_NAME
from quatserve.training.loop.prediction import Images, Predictor

BATCH = 32


def session_of(model: bytes, *, optimise: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch has threads here too
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, output: str, images: Images, batch: int = BATCH) -> NDArray[Any]:
    """The output named `output` of all images, computed in batches of `batch`."""
    parts = [images[i : i + batch] for i in range(0, len(images), batch)]
    return np.concatenate([session.run([output], {INPUT_NAME: part})[0] for part in parts])


def predictor_of(model: bytes, output: str) -> Predictor:
    """The file as training's evaluation takes a network."""
    return partial(run, session_of(model), output)


def with_output(model: bytes, name: str) -> bytes:
    """The same graph, giving its inner float32 value `name` away as well."""
    proto = onnx.load_from_string(model)
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return bytes(proto.SerializeToString())
