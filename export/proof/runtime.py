"""Runs ONNX files on uint8 images, on the CPU."""

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
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch shares the cores
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, output: str, images: Images, batch: int = BATCH) -> NDArray[Any]:
    """Compute the output named `output` for all images, in batches of `batch`."""
    parts = [images[i : i + batch] for i in range(0, len(images), batch)]
    return np.concatenate([session.run([output], {INPUT_NAME: part})[0] for part in parts])


def predictor_of(model: bytes, output: str) -> Predictor:
    """Wrap the file as the predictor that training's evaluation accepts."""
    return partial(run, session_of(model), output)


def with_output(model: bytes, name: str) -> bytes:
    """Return the graph with its inner float32 value `name` as an additional output."""
    proto = onnx.load_from_string(model)
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return bytes(proto.SerializeToString())
