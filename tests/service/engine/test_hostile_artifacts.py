"""Artifacts that are whole by their digests, and would read the host's files or fill its memory."""

import hashlib
import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import AttributeProto, TensorProto, helper

from quatserve.service.engine.external_data import refuse_external_data
from quatserve.service.engine.load import load_model
from quatserve.service.engine.session import CPU, load_graph, read_no_files, session_options
from quatserve.service.errors import ArtifactError
from quatserve.service.settings import PrecisionChoice, Settings
from tests.service.artifacts import classifier_graph, write, write_classifier

KEY = b"the key of the service"
SETTINGS = Settings(max_batch=8, max_batch_s=60, threads=1, precision=PrecisionChoice.FP32)


def external(name: str = "secret") -> TensorProto:
    """A tensor whose content is the first bytes of a file beside the service."""
    tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[len(KEY)])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="key.txt")
    return tensor


def thief(*nodes: onnx.NodeProto, initial: TensorProto | None = None) -> onnx.ModelProto:
    """A graph that returns the tensor `secret`."""
    output = helper.make_tensor_value_info("out", TensorProto.UINT8, [len(KEY)])
    copy = helper.make_node("Identity", ["secret"], ["out"])
    graph = helper.make_graph([*nodes, copy], "g", [], [output], [initial] if initial else [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def constant(**values: Any) -> onnx.NodeProto:
    node = helper.make_node("Constant", [], ["secret"])
    node.attribute.append(AttributeProto(name="value", **values))
    return node


def in_initializer() -> onnx.ModelProto:
    return thief(initial=external())


def in_constant() -> onnx.ModelProto:
    return thief(constant(type=AttributeProto.TENSOR, t=external()))


def in_tensors() -> onnx.ModelProto:
    return thief(constant(type=AttributeProto.TENSORS, tensors=[external()]))


def in_subgraph() -> onnx.ModelProto:
    return thief(constant(type=AttributeProto.GRAPH, g=in_initializer().graph))


def in_subgraphs() -> onnx.ModelProto:
    return thief(constant(type=AttributeProto.GRAPHS, graphs=[in_constant().graph]))


def in_sparse_values() -> onnx.ModelProto:
    model = thief()
    model.graph.sparse_initializer.add(values=external())
    return model


def in_sparse_indices() -> onnx.ModelProto:
    sparse = onnx.SparseTensorProto(indices=external())
    return thief(constant(type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse))


def in_function() -> onnx.ModelProto:
    model = thief()
    model.functions.add(name="f").node.append(constant(type=AttributeProto.TENSOR, t=external()))
    return model


def in_default_of_function() -> onnx.ModelProto:
    model = thief()
    model.functions.add().attribute_proto.add(name="a", type=AttributeProto.TENSOR, t=external())
    return model


def in_training() -> onnx.ModelProto:
    model = thief()
    model.training_info.add(algorithm=in_initializer().graph)
    return model


PLACES = [
    in_initializer,
    in_constant,
    in_tensors,
    in_subgraph,
    in_subgraphs,
    in_sparse_values,
    in_sparse_indices,
    in_function,
    in_default_of_function,
    in_training,
]


@pytest.fixture
def beside_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file that no graph may read."""
    (tmp_path / "key.txt").write_bytes(KEY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("make", PLACES)
def test_external_data_is_found_wherever_a_tensor_may_be(make: Callable[[], onnx.ModelProto]) -> None:
    with pytest.raises(ArtifactError, match="external data"):
        refuse_external_data(make().SerializeToString())


@pytest.mark.parametrize("make", [in_initializer, in_constant])
def test_onnxruntime_would_read_the_file_and_refuses_itself(
    beside_key: Path, make: Callable[[], onnx.ModelProto]
) -> None:
    graph = make().SerializeToString()
    careless = ort.InferenceSession(graph, providers=[CPU])
    assert careless.run(None, {})[0].tobytes() == KEY  # so the checks guard against something
    options = session_options(1)
    read_no_files(options)
    options.log_severity_level = 4
    with pytest.raises(Exception, match="External data"):
        ort.InferenceSession(graph, options, providers=[CPU])


def test_a_model_that_reads_a_file_is_not_loaded(beside_key: Path) -> None:
    """A classifier of one byte of the file: with it, /classify told a key byte by byte."""
    images = np.zeros((8, 4, 4, 3), np.uint8)
    model = onnx.load_from_string(classifier_graph((4, 4)))
    model.graph.initializer.append(external())
    outputs = np.full((8, 3), 1 / 3, np.float32)
    directory = write(
        beside_key / "models", "thief", 1, "classification", (4, 4), {"fp32": model.SerializeToString()},
        {"fp32": outputs}, images, tolerance=0.25,
    )  # fmt: skip
    with pytest.raises(ArtifactError, match=r"model\.onnx: the graph has external data"):
        load_model(directory, SETTINGS)


def test_the_format_of_onnxruntime_is_refused(tmp_path: Path) -> None:
    """Its tensors may lie in other files too."""
    options = session_options(1)
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    ort.InferenceSession(classifier_graph((4, 4)), options, providers=[CPU])
    graph = (tmp_path / "model.ort").read_bytes()
    assert graph[4:8] == b"ORTM"
    with pytest.raises(ArtifactError):
        load_graph(graph, session_options(1), [CPU])


@pytest.mark.parametrize(
    "graph",
    [
        b"\x3a\x05ab",  # the graph is longer than the file
        b"\x3b\x3c",  # a group
        b"\xba\x80\x80\x80\x80\x01\x00",  # protobuf takes this tag for that of the graph
        b"\x08" + b"\xff" * 11,  # a number without an end
        b"\x3a",
    ],
)
def test_bytes_that_protobuf_reads_in_another_way_are_refused(graph: bytes) -> None:
    with pytest.raises(ArtifactError, match="not protobuf"):
        refuse_external_data(graph)


def test_deep_graphs_are_refused_without_recursion() -> None:
    graph = b""
    for _ in range(200):  # attribute 6 in node 5 in graph 1: a graph in a graph
        for field in (6, 5, 1):
            graph = bytes([field << 3 | 2]) + _length(graph) + graph
    with pytest.raises(ArtifactError, match="nested more than"):
        refuse_external_data(b"\x3a" + _length(graph) + graph)


def _length(content: bytes) -> bytes:
    size, found = len(content), b""
    while size >= 0x80:
        found, size = found + bytes([size & 0x7F | 0x80]), size >> 7
    return found + bytes([size])


def replace_probe(directory: Path, **arrays: Any) -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **arrays)
    store_probe(directory, stream.getvalue())


def store_probe(directory: Path, probe: bytes) -> None:
    (directory / "probe.npz").write_bytes(probe)
    description = json.loads((directory / "model.json").read_text())
    description["probe"]["sha256"] = hashlib.sha256(probe).hexdigest()
    (directory / "model.json").write_text(json.dumps(description))


@pytest.mark.parametrize("name", ["images", "fp32"])
def test_a_probe_that_inflates_is_refused_unread(tmp_path: Path, name: str) -> None:
    directory = write_classifier(tmp_path)
    arrays = {"images": np.zeros((8, 32, 32, 3), np.uint8), "fp32": np.zeros((8, 3), np.float32)}
    arrays[name] = np.zeros((2**26,), np.uint8)
    replace_probe(directory, **arrays)
    assert (directory / "probe.npz").stat().st_size < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(ArtifactError, match=rf"probe\.npz: {name} has 67,108,992 bytes, at most"):
            load_model(directory, SETTINGS)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_probe_packed_by_a_method_without_a_bound_is_refused(tmp_path: Path) -> None:
    directory = write_classifier(tmp_path)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("images.npy", b"\0" * 1000)
    store_probe(directory, stream.getvalue())
    with pytest.raises(ArtifactError, match="images is compressed in another way"):
        load_model(directory, SETTINGS)
