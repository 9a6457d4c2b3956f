"""Tiny real ONNX artifacts, built with the onnx package alone: the suite needs no training and no torch.

The arithmetic is chosen so that a test can predict every output by hand:
classification: probabilities = softmax(mean over the image of (r, g, b) / 16);  labels red, green, blue
segmentation:   heatmap = the red channel, as it is
"""

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

LABELS = ("red", "green", "blue")
OPSET, IR_VERSION = 18, 9
WORK = 256  # side of the matrices of idle work
CLASSIFIER, SEGMENTER = "tiny-colours", "tiny-road"


def _model(
    nodes: list[onnx.NodeProto],
    output: onnx.ValueInfoProto,
    size: tuple[int, int],
    constants: dict[str, NDArray[Any]],
) -> bytes:
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", *size, 3])
    initial = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tiny", [images], [output], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def classifier_graph(size: tuple[int, int], scale: float = 1 / 16, rounds: int = 0) -> bytes:
    """Mean colour to softmax. `rounds` adds slow work that leaves the result as it is."""
    constants = {"axes": np.array([1, 2]), "scale": np.array(scale, np.float32)}
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats", "axes"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "scale"], ["scaled"]),
    ]
    last = "scaled"
    if rounds:
        nodes.extend(_idle_work(rounds, constants))
        nodes.append(helper.make_node("Add", ["scaled", "nothing"], ["delayed"]))
        last = "delayed"
    nodes.append(helper.make_node("Softmax", [last], ["probabilities"], axis=1))
    output = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", len(LABELS)])
    return _model(nodes, output, size, constants)


def _idle_work(rounds: int, constants: dict[str, NDArray[Any]]) -> list[onnx.NodeProto]:
    """Matrix products that depend on the input, so that no optimiser removes them, times zero."""
    constants["matrix"] = np.eye(WORK, dtype=np.float32)
    constants["zero"] = np.array(0, np.float32)
    constants["all"] = np.array([0, 1])
    constants["row"] = np.ones((WORK, WORK), np.float32)
    nodes = [
        helper.make_node("ReduceMean", ["mean", "all"], ["seed"], keepdims=0),
        helper.make_node("Mul", ["row", "seed"], ["work0"]),
    ]
    nodes += [helper.make_node("MatMul", [f"work{i}", "matrix"], [f"work{i + 1}"]) for i in range(rounds)]
    nodes += [
        helper.make_node("ReduceMean", [f"work{rounds}", "all"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
    ]
    return nodes


def segmenter_graph(size: tuple[int, int]) -> bytes:
    constants = {"index": np.array([0])}
    nodes = [
        helper.make_node("Transpose", ["images"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Gather", ["planes", "index"], ["heatmap"], axis=1),
    ]
    output = helper.make_tensor_value_info("heatmap", TensorProto.UINT8, ["batch", 1, *size])
    return _model(nodes, output, size, constants)


def expected_probabilities(images: NDArray[np.uint8], scale: float = 1 / 16) -> NDArray[np.float64]:
    """The classifier by its definition."""
    logits = images.astype(np.float64).mean(axis=(1, 2)) * scale
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _probe(images: NDArray[np.uint8], outputs: dict[str, NDArray[Any]]) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, images=images, **outputs)
    return stream.getvalue()


def write(
    root: Path,
    name: str,
    version: int,
    task: str,
    size: tuple[int, int],
    graphs: dict[str, bytes],
    outputs: dict[str, NDArray[Any]],
    images: NDArray[np.uint8],
    tolerance: float,
) -> Path:
    """An artifact as the exporter would write it, complete with digests."""
    directory = root / name / str(version)
    directory.mkdir(parents=True)
    names = {"fp32": "model.onnx", "fp16": "model.fp16.onnx", "int8": "model.int8.onnx"}
    probe = _probe(images, outputs)
    for precision, graph in graphs.items():
        (directory / names[precision]).write_bytes(graph)
    (directory / "probe.npz").write_bytes(probe)
    files = [
        {"name": names[p], "precision": p, "bytes": len(g), "sha256": _digest(g), "tolerance": tolerance}
        for p, g in graphs.items()
    ]
    classify = task == "classification"
    description = {
        "schema_version": 2,
        "name": name,
        "version": version,
        "task": task,
        "summary": "A tiny model for tests.",
        "network": "none",
        "algebra": "real",
        "labels": LABELS if classify else ("road",),
        **({} if classify else {"threshold": 0.5}),
        "confidence_threshold": None,
        "height": size[0],
        "width": size[1],
        "resize": "centre-square" if classify else "stretch",
        "files": files,
        "probe": {"sha256": _digest(probe)},
        "metrics": [],
        "parity": {"max_difference": 0.0, "max_logit": 1.0, "images": 8, "batches": [1, 8]},
        "parameters": {"total": 1, "trainable": 1, "folded": 1},
        "multiply_accumulates": 1,
        "training": {
            "recipe": "none",
            "epochs": 1,
            "seed": 0,
            "commit": "none",
            "dataset": "none",
            "data_licence": "none",
            "weights_licence": "MIT",
        },
    }
    (directory / "model.json").write_text(json.dumps(description))
    return directory


def probe_images(size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (8, *size, 3), dtype=np.uint8)


def write_classifier(
    root: Path,
    version: int = 1,
    *,
    name: str = CLASSIFIER,
    size: tuple[int, int] = (32, 32),
    scale: float = 1 / 16,
    rounds: int = 0,
    expected: NDArray[Any] | None = None,
) -> Path:
    """A classifier; `expected` replaces the outputs the probe promises."""
    images = probe_images(size)
    outputs = expected_probabilities(images, scale).astype(np.float32) if expected is None else expected
    graph = classifier_graph(size, scale, rounds)
    return write(
        root,
        name,
        version,
        "classification",
        size,
        {"fp32": graph, "int8": graph},
        {"fp32": outputs, "int8": outputs},
        images,
        tolerance=1e-4,
    )


def write_truncated(root: Path, version: int) -> Path:
    """A classifier whose graph ends in the middle."""
    directory = write_classifier(root, version)
    graph = directory / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:50])
    return directory


def write_wrong_digest(root: Path, version: int) -> Path:
    """A classifier whose graph is not the one that was described."""
    directory = write_classifier(root, version)
    description = json.loads((directory / "model.json").read_text())
    description["files"][0]["sha256"] = "0" * 64
    (directory / "model.json").write_text(json.dumps(description))
    return directory


def write_torn_probe(root: Path, version: int) -> Path:
    """A classifier whose probe was cut off before its digest was taken."""
    directory = write_classifier(root, version)
    probe = (directory / "probe.npz").read_bytes()[:2000]
    (directory / "probe.npz").write_bytes(probe)
    description = json.loads((directory / "model.json").read_text())
    description["probe"]["sha256"] = _digest(probe)
    (directory / "model.json").write_text(json.dumps(description))
    return directory


def write_nan(root: Path, version: int) -> Path:
    """A classifier whose graph is whole and returns nothing but NaN."""
    expected = expected_probabilities(probe_images((32, 32))).astype(np.float32)
    return write_classifier(root, version, scale=float("nan"), expected=expected)


def write_segmenter(
    root: Path, version: int = 1, *, name: str = SEGMENTER, size: tuple[int, int] = (24, 80)
) -> Path:
    images = probe_images(size)
    return write(
        root,
        name,
        version,
        "segmentation",
        size,
        {"fp32": segmenter_graph(size)},
        {"fp32": images[..., :1].transpose(0, 3, 1, 2)},
        images,
        tolerance=1,
    )


def write_both(root: Path) -> Path:
    write_classifier(root)
    write_segmenter(root)
    return root


def main() -> None:
    """Write both artifacts under a directory given on the command line, for trying the service by hand."""
    import sys

    root = Path(sys.argv[1])
    shutil.rmtree(root, ignore_errors=True)
    write_both(root)


if __name__ == "__main__":
    main()
