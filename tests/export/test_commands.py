"""The commands on a finished artifact, and on broken ones."""

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from quatserve.export.commands import main
from quatserve.service.artifact import read_description
from tests.export.tiny import NAME, road_place
from tests.full_disk import full_disk
from tests.service.harness import REPOSITORY, wait_until


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = road_place(tmp_path_factory.mktemp("artifact"))
    arguments = ["build", str(place.run), "--data", str(place.data), "--out", str(place.out)]
    assert main([*arguments, "--max-loss", "1"]) == 0
    return place.out


@pytest.fixture
def artifact(pristine: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(pristine, tmp_path / NAME / "1"))


def promise(artifact: Path, name: str) -> None:
    """Write the file's present digest into model.json, so that only the other checks can fail."""
    path = artifact / "model.json"
    data = json.loads(path.read_text())
    found = hashlib.sha256((artifact / name).read_bytes()).hexdigest()
    for file in (*data["files"], data["probe"]):
        if file["name"] == name:
            file["sha256"] = found
    path.write_text(json.dumps(data))


def test_verify_states_the_differences(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(artifact)]) == 0
    assert re.search(r"fp32 within 0, fp16 within 0, int8 within 0$", capsys.readouterr().out.strip())


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("name", ["model.onnx", "model.int8.onnx", "probe.npz"])
def test_a_flipped_bit_is_found(name: str, artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray((artifact / name).read_bytes())
    content[len(content) // 2] ^= 1
    (artifact / name).write_bytes(content)
    assert name in refused(["verify", str(artifact)], capsys)


@pytest.mark.parametrize("name", ["model.onnx", "model.json", "probe.npz"])
def test_a_missing_file_is_found(name: str, artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (artifact / name).unlink()
    assert name in refused(["verify", str(artifact)], capsys)


def test_another_network_under_the_same_name_is_found(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(artifact / "model.onnx")
    bias = next(t for t in model.graph.initializer if t.name == "head.0.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.array([9.0], np.float32), "head.0.bias"))
    onnx.save(model, artifact / "model.onnx")
    promise(artifact, "model.onnx")
    assert "probe differs by" in refused(["verify", str(artifact)], capsys)


def test_a_file_that_is_not_a_graph_is_found(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (artifact / "model.onnx").write_bytes(b"not a graph at all")
    promise(artifact, "model.onnx")
    assert "not an ONNX graph" in refused(["verify", str(artifact)], capsys)


def test_a_graph_of_another_size_is_found(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = artifact / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"height": 13}))
    assert "model.json promises" in refused(["verify", str(artifact)], capsys)


def test_a_pickled_probe_is_not_opened(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(artifact / "probe.npz", images=np.array([{}], object), fp32=np.zeros(1))
    promise(artifact, "probe.npz")
    assert "probe.npz" in refused(["verify", str(artifact)], capsys)


def test_all_are_checked_even_if_the_first_is_bad(
    pristine: Path, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (artifact / "model.onnx").write_bytes(b"not a graph at all")
    promise(artifact, "model.onnx")
    assert main(["verify", str(artifact), str(pristine)]) == 2
    printed = capsys.readouterr()
    assert str(pristine) in printed.out
    assert f"error: {artifact}: model.onnx: not an ONNX graph" in printed.err


def test_a_full_disk_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = road_place(tmp_path)
    with full_disk(10_000):
        arguments = ["build", str(place.run), "--data", str(place.data), "--out", str(place.out)]
        assert main([*arguments, "--precision", "fp32"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "File too large" in error.splitlines()[-1]
    assert not place.out.exists()


def test_a_directory_that_is_not_an_artifact_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "model.json" in refused(["inspect", str(tmp_path)], capsys)


def test_debug_shows_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path), "--debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error
    assert error.splitlines()[-1].startswith("error: ")


def test_an_abbreviated_flag_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(tmp_path), "--js"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --js" in capsys.readouterr().err


def test_inspect_prints_operators_sizes_and_scores(
    pristine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(pristine)]) == 0
    text = capsys.readouterr().out
    description = read_description(pristine)
    assert f"{description.parameters.total:,}" in text
    assert f"{description.parameters.folded:,}" in text
    assert re.search(r"Conv +16 +16 +16\n", text)
    assert re.search(r"iou +KITTI road +last-1-of-each-category +int8", text)
    assert f"{description.parity.max_difference:.2g}" in text


def test_inspect_as_json(pristine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(pristine), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    graph = onnx.load(pristine / "model.onnx").graph
    assert found["nodes"]["fp32"] == len(graph.node) == sum(found["operators"]["fp32"].values())
    assert found["fp32_bytes"]["after_folding"] == 4 * found["description"]["parameters"]["folded"]
    folded = sum(np.prod(t.dims) for t in graph.initializer if t.name.endswith((".weight", ".bias")))
    assert found["description"]["parameters"]["folded"] == folded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--precision", "fp64"], "'fp64' is not a precision"),
        (["--precision", "int8"], "fp32 is required"),
        (["--max-loss", "-1"], "'-1' is not a number from 0 upwards"),
        (["--max-loss", "nan"], "'nan' is not a number from 0 upwards"),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["build", "runs/x", "--data", "data", "--out", "models/x/1", *arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_card_says_what_a_person_needs(pristine: Path) -> None:
    card, description = (pristine / "README.md").read_text(), read_description(pristine)
    for part in (
        "## How it was trained",
        "## What it scores",
        "## Limits",
        "## Licence",
        "0.827",
        "CC BY-NC-SA",
    ):
        assert part in card
    for metric in description.metrics:
        assert f"{metric.value:.4f}" in card
    assert "$" not in card
    assert "](overlay.jpg)" in card
    assert (pristine / "overlay.jpg").stat().st_size > 1000


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["build", "--help"], ["inspect", "--help"], ["verify", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
    assert "quatserve build runs/mine" in capsys.readouterr().out


def test_a_terminated_build_leaves_nothing_behind(tmp_path: Path) -> None:
    place = road_place(tmp_path)
    command = [sys.executable, "-m", "quatserve", "build", str(place.run), "--data", str(place.data)]
    process = subprocess.Popen([*command, "--out", str(place.out)], cwd=REPOSITORY, stderr=subprocess.PIPE)
    wait_until(lambda: place.out.parent.is_dir(), 60)
    process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert error == "stopped: the unfinished artifact was removed\n"
    assert not (tmp_path / "models").exists()
