"""`models/NAME` as a repository of Triton, read with Triton's own message."""

import importlib.util
from pathlib import Path
from typing import Any

import onnx
import pytest
import tritonclient
from google.protobuf import text_format

from quatserve.export.artifact.triton import write_repository_files
from quatserve.service.artifact import Precision, read_description
from tests.export.artifact.test_modules import HEIGHT, LABELS, WIDTH, classifier, quietly, segmenter


def model_config() -> Any:
    """Triton's ModelConfig. It is loaded by its file: the package around it needs gRPC."""
    path = Path(tritonclient.__path__[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MESSAGES = model_config()
SINGLE = (Precision.FP32,)


def read(directory: Path) -> Any:
    return text_format.Parse((directory / "config.pbtxt").read_text(), MESSAGES.ModelConfig())


def signature(tensor: Any) -> tuple[str, int, list[int]]:
    return tensor.name, tensor.data_type, list(tensor.dims)


def shapes(directory: Path, config: Any) -> list[tuple[str, list[int]]]:
    """Names and sizes without the batch, of the file that Triton would open."""
    graph = onnx.load(directory / "1" / config.default_model_filename).graph
    values = (*graph.input, *graph.output)
    return [(v.name, [d.dim_value for d in v.type.tensor_type.shape.dim[1:]]) for v in values]


def test_a_classifier_is_described_to_triton(tmp_path: Path) -> None:
    quietly(classifier(), tmp_path / "pets" / "1", precisions=SINGLE)
    config = read(tmp_path / "pets")
    assert (config.name, config.backend) == ("pets", "onnxruntime")
    (images,), (output,) = config.input, config.output
    assert signature(images) == ("images", MESSAGES.TYPE_UINT8, [HEIGHT, WIDTH, 3])
    assert signature(output) == ("probabilities", MESSAGES.TYPE_FP32, [3])
    assert (tmp_path / "pets" / output.label_filename).read_text().split() == [*LABELS]
    assert shapes(tmp_path / "pets", config) == [(t.name, list(t.dims)) for t in (images, output)]


@pytest.mark.parametrize("labels", [("road",), ("background", "road", "car")], ids=len)
def test_a_segmenter_is_described_to_triton(tmp_path: Path, labels: tuple[str, ...]) -> None:
    out = tmp_path / "street" / "1"
    quietly(segmenter(len(labels)), out, task="segmentation", labels=labels, precisions=SINGLE)
    config = read(tmp_path / "street")
    (output,) = config.output
    assert signature(output) == ("heatmap", MESSAGES.TYPE_UINT8, [len(labels), HEIGHT, WIDTH])
    assert (tmp_path / "street" / "labels.txt").read_text().split() == [*labels]
    assert shapes(tmp_path / "street", config)[1] == ("heatmap", [len(labels), HEIGHT, WIDTH])


def test_the_highest_version_is_described(tmp_path: Path) -> None:
    model = quietly(classifier(), tmp_path / "pets" / "2", precisions=SINGLE)
    for version, labels, expected in [(1, ("cat", "dog"), 3), (10, ("cat", "dog"), 2)]:
        (tmp_path / "pets" / str(version)).mkdir()
        write_repository_files(
            tmp_path / "pets", model.model_copy(update={"version": version, "labels": labels})
        )
        assert read(tmp_path / "pets").output[0].dims == [expected]


def test_a_failed_build_leaves_no_repository_files(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="labels"):
        quietly(classifier(), tmp_path / "models" / "pets" / "1", labels=("cat",))
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("name", ["cifar10-quaternion", "kitti-road-quaternion"])
def test_shipped_models_are_a_repository(name: str) -> None:
    directory = Path(__file__).parents[3] / "models" / name
    config, model = read(directory), read_description(directory / "1")
    assert config.name == name
    assert (directory / "labels.txt").read_text().splitlines() == [*model.labels]
    assert shapes(directory, config) == [(t.name, list(t.dims)) for t in (*config.input, *config.output)]
