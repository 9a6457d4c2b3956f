"""Quantises the fp32 graph to static INT8: 8-bit activations, one weight scale per output channel.

Weights use 7 bits (-64 to 64). A processor without VNNI adds two u8 x s8 products in 16 bits; 2 x 255 x 127
overflows there and 2 x 255 x 64 does not. With 7 bits the sums are exact everywhere, so the same file gives
the same answer on old and new processors.

Only the blocks are quantised; they are nearly all of the work. The learned components, stem and head stay in
fp32: they are a few channels wide, and quantising them costs more accuracy than all blocks (docs/fold.md).
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from quatserve.export.graph import IR_VERSION
from quatserve.service.artifact import INPUT_NAME
from quatserve.training.loop.prediction import Images

QUANTISED = ["Conv", "Relu", "Add", "Concat"]
BODY = "blocks."
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
            op_types_to_quantize=QUANTISED,
            nodes_to_exclude=[node.name for node in source.graph.node if not node.name.startswith(BODY)],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return _tidied(onnx.load(path), source)


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
