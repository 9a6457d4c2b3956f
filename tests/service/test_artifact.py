"""`model.json`: what is refused, in one line that names the file and the field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quatserve.service.artifact import Description, Precision, read_description, read_verified, verify_digests
from quatserve.service.errors import ArtifactError
from tests.service.artifacts import LABELS, write_classifier

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_classifier(tmp_path)
    (found,) = tmp_path.glob("*/1")
    return found


def rewrite(directory: Path, change: Change) -> None:
    path = directory / "model.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_a_good_description_is_read(directory: Path) -> None:
    description = read_description(directory)
    assert (description.name, description.version) == (directory.parent.name, 1)
    assert description.labels == LABELS
    assert description.file(Precision.FP16) is None
    verify_digests(directory, description)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(extra=1), "extra: Extra inputs are not permitted"),
        (lambda d: d.pop("task"), "task: Field required"),
        (lambda d: d.update(schema_version=99), "schema_version: Input should be 2"),
        (
            lambda d: d.update(schema_version=1),
            "schema_version: 1 is not loaded any more: build the run again",
        ),
        (lambda d: d.update(threshold=0.5), "threshold belongs to a segmentation network of one class"),
        (lambda d: d.update(palette=[[0, 0, 0]] * 3), "palette has one colour for each label"),
        (lambda d: d.update(task="segmentation"), "palette has one colour for each label"),
        (
            lambda d: d.update(task="segmentation", labels=["road"]),
            "threshold belongs to a segmentation network",
        ),
        (
            lambda d: d.update(confidence_threshold=95),
            "confidence_threshold: Input should be less than or equal",
        ),
        (lambda d: d.update(height=0), "height: Input should be greater than 0"),
        (lambda d: d.update(labels=["red", "red", "blue"]), "labels must be distinct"),
        (lambda d: d["files"].append(d["files"][0]), "each precision may have one file only"),
        (
            lambda d: d.update(files=[f for f in d["files"] if f["precision"] != "fp32"]),
            "an artifact always has its fp32 file",
        ),
        (lambda d: d["files"][0].update(name="../model.onnx"), "files.0.name: "),
        (lambda d: d["files"][0].update(bytes=2**31), "files.0.bytes: "),
        (
            lambda d: d["files"][1].update(tolerance=1e300),
            "model.int8.onnx: the tolerance is 1e+300, at most 0.25 is allowed",
        ),
        (lambda d: d.update(version=2), "describes tiny-colours/2, but lies in tiny-colours/1"),
    ],
)
def test_a_bad_description_is_one_line(directory: Path, change: Change, message: str) -> None:
    rewrite(directory, change)
    with pytest.raises(ArtifactError) as error:
        read_description(directory)
    assert str(error.value).startswith(f"{directory / 'model.json'}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_document_of_version_1_is_refused_by_its_version_first(directory: Path) -> None:
    """It has no field of today: the first fault told must be the one that explains the others."""
    rewrite(directory, lambda d: d.update(schema_version=1, parity={}, training={"lessons": 3}))
    with pytest.raises(ArtifactError, match="schema_version: 1 is not loaded any more: build the run again"):
        read_description(directory)


def test_what_is_not_known_is_not_written(directory: Path) -> None:
    def forget(document: dict[str, Any]) -> None:
        for field in ("training", "network", "algebra"):
            del document[field]

    rewrite(directory, forget)
    description = read_description(directory)
    written = json.loads(description.model_dump_json())
    assert not {"training", "network", "algebra", "calibration", "stem_stride", "palette"} & written.keys()
    assert "max_levels" not in written["parity"]
    assert written["confidence_threshold"] is None
    assert Description.model_validate(written) == description


@pytest.mark.parametrize(
    ("labels", "foreground"),
    [(["road"], ("road",)), (["background", "road", "car"], ("road", "car"))],
    ids=["one", "several"],
)
def test_the_background_is_no_foreground(
    directory: Path, labels: list[str], foreground: tuple[str, ...]
) -> None:
    several = len(labels) > 1
    masks = {"palette": [[0, 0, 0]] * len(labels)} if several else {"threshold": 0.4}
    rewrite(directory, lambda d: d.update(task="segmentation", labels=labels, **masks))
    assert read_description(directory).foreground == foreground


def test_a_missing_description_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"model\.json: cannot be read \(No such file or directory\)"):
        read_description(tmp_path)


def test_bytes_that_changed_are_not_returned(directory: Path) -> None:
    file = read_description(directory).files[0]
    path = directory / file.name
    assert read_verified(path, file.sha256, file.bytes) == path.read_bytes()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(
        ArtifactError, match=rf"{file.name}: sha256 is .*, model.json says {file.sha256[:12]}"
    ):
        read_verified(path, file.sha256, file.bytes)
    with pytest.raises(ArtifactError, match="sha256"):
        verify_digests(directory, read_description(directory))
