"""Loading an artifact: what is verified, warmed, probed and refused; and where it runs."""

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quatserve.service.artifact import Precision, read_description
from quatserve.service.engine.cpus import quota, usable_cpus
from quatserve.service.engine.load import choose_precision, load_model
from quatserve.service.engine.probe import Probe
from quatserve.service.engine.session import Session
from quatserve.service.engine.warmup import warm_up
from quatserve.service.errors import ArtifactError, BadOutputError, DeviceUnavailableError
from quatserve.service.settings import Device, PrecisionChoice, Settings
from tests.service.artifacts import (
    classifier_graph,
    expected_probabilities,
    probe_images,
    segmenter_graph,
    write,
    write_classifier,
    write_segmenter,
)

SETTINGS = Settings(max_batch=8, max_batch_s=60, threads=1)  # however slow the machine is


def rewrite(directory: Path, **changes: Any) -> None:
    path = directory / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_good_artifact_runs_and_agrees_with_the_definition(tmp_path: Path) -> None:
    model = load_model(write_classifier(tmp_path), SETTINGS)
    images = np.random.default_rng(1).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    np.testing.assert_allclose(model.session.run(images), expected_probabilities(images), atol=1e-6)
    assert (model.provider, model.precision, model.max_batch) == ("CPUExecutionProvider", Precision.INT8, 8)
    assert model.probe_difference < 1e-5


@pytest.mark.parametrize("name", ["model.onnx", "model.int8.onnx", "probe.npz"])
def test_a_changed_byte_is_refused(tmp_path: Path, name: str) -> None:
    directory = write_classifier(tmp_path)
    data = bytearray((directory / name).read_bytes())
    data[len(data) // 2] ^= 1
    (directory / name).write_bytes(data)
    with pytest.raises(ArtifactError, match=f"{name}: sha256"):
        load_model(directory, SETTINGS)


@pytest.mark.parametrize("name", ["model.onnx", "model.int8.onnx", "probe.npz", "model.json"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    directory = write_classifier(tmp_path)
    (directory / name).unlink()
    with pytest.raises(ArtifactError, match=f"{name}: cannot be read"):
        load_model(directory, SETTINGS)


def test_a_probe_that_disagrees_is_refused(tmp_path: Path) -> None:
    images = probe_images((32, 32))
    wrong = expected_probabilities(images).astype(np.float32)
    wrong[7, 1] += 0.01
    with pytest.raises(ArtifactError, match=r"probe: output differs by 0\.01, tolerance is 0\.0001"):
        load_model(write_classifier(tmp_path, expected=wrong), SETTINGS)


def test_a_network_that_makes_nan_is_refused(tmp_path: Path) -> None:
    broken = np.full((8, 3), np.nan, np.float32)  # the probe expects NaN too: still refused
    with pytest.raises(ArtifactError, match="not finite"):
        load_model(write_classifier(tmp_path, scale=float("nan"), expected=broken), SETTINGS)


def test_a_graph_of_another_shape_is_refused(tmp_path: Path) -> None:
    images = probe_images((32, 32))
    outputs = {"fp32": expected_probabilities(images).astype(np.float32)}
    directory = write(tmp_path, "odd", 1, "classification", (32, 32), {"fp32": classifier_graph((16, 16))},
                      outputs, images, 1e-4)  # fmt: skip
    with pytest.raises(ArtifactError, match=r"odd/1/model.onnx: the graph takes .*16, 16, 3"):
        load_model(directory, SETTINGS)


def test_a_graph_of_the_other_task_is_refused(tmp_path: Path) -> None:
    images = probe_images((32, 32))
    outputs = {"fp32": expected_probabilities(images).astype(np.float32)}
    directory = write(tmp_path, "odd", 1, "classification", (32, 32), {"fp32": segmenter_graph((32, 32))},
                      outputs, images, 1e-4)  # fmt: skip
    with pytest.raises(ArtifactError, match=r"odd/1/model.onnx: the graph has no output probabilities"):
        load_model(directory, SETTINGS)


def test_labels_must_match_the_outputs(tmp_path: Path) -> None:
    directory = write_classifier(tmp_path)
    rewrite(directory, labels=["red", "green"])
    with pytest.raises(ArtifactError, match=r"float32\[1, 3\], not float32\[1, 2\]"):
        load_model(directory, SETTINGS)


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    images = probe_images((32, 32))
    outputs = {"fp32": expected_probabilities(images).astype(np.float32)}
    directory = write(
        tmp_path, "odd", 1, "classification", (32, 32), {"fp32": b"no graph"}, outputs, images, 1e-4
    )
    with pytest.raises(ArtifactError, match=r"odd/1/model.onnx: the graph is not protobuf"):
        load_model(directory, SETTINGS)


def test_an_unknown_field_or_a_wrong_place_is_refused(tmp_path: Path) -> None:
    directory = write_classifier(tmp_path)
    moved = directory.with_name("2")
    directory.rename(moved)
    with pytest.raises(ArtifactError, match="lies in"):
        read_description(moved)
    rewrite(moved, version=2, surprise=1)
    with pytest.raises(ArtifactError, match="surprise"):
        read_description(moved)


# --- precision and device ---


def test_precision(tmp_path: Path) -> None:
    both = read_description(write_classifier(tmp_path))
    one = read_description(write_segmenter(tmp_path))
    chosen = [
        choose_precision(PrecisionChoice.AUTO, d, device)
        for d in (both, one)
        for device in (Device.CPU, Device.CUDA)
    ]
    assert chosen == [Precision.INT8, Precision.FP32, Precision.FP32, Precision.FP32]
    assert choose_precision(PrecisionChoice.FP16, both, Device.CUDA) is Precision.FP16


def test_a_gpu_takes_fp16_where_the_artifact_has_it(tmp_path: Path) -> None:
    images = probe_images((32, 32))
    outputs = {name: expected_probabilities(images).astype(np.float32) for name in ("fp32", "fp16")}
    graphs = dict.fromkeys(outputs, classifier_graph((32, 32)))
    described = read_description(
        write(tmp_path, "half", 1, "classification", (32, 32), graphs, outputs, images, 1e-4)
    )
    assert choose_precision(PrecisionChoice.AUTO, described, Device.CUDA) is Precision.FP16
    assert choose_precision(PrecisionChoice.AUTO, described, Device.CPU) is Precision.FP32


def test_a_precision_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no fp16 file; it has fp32, int8"):
        load_model(
            write_classifier(tmp_path), SETTINGS.model_copy(update={"precision": PrecisionChoice.FP16})
        )


def test_cuda_is_refused_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match=r"device cuda: .*(gpu extra|NVIDIA driver)"):
        load_model(write_classifier(tmp_path), SETTINGS.model_copy(update={"device": Device.CUDA}))


def test_auto_settles_for_the_cpu_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "quatserve.service.engine.load"):
        model = load_model(write_classifier(tmp_path), SETTINGS.model_copy(update={"device": Device.AUTO}))
    assert (model.provider, model.precision) == ("CPUExecutionProvider", Precision.INT8)
    assert str(model.fallback_reason).startswith("device cuda: ")
    assert caplog.records[-1].__dict__["fallback_reason"] == model.fallback_reason


def test_a_failing_run_may_not_change_provider(tmp_path: Path) -> None:
    session = load_model(write_classifier(tmp_path), SETTINGS).session
    assert isinstance(session, Session)
    assert session._session._enable_fallback is False


# --- running ---


def test_a_run_can_be_told_to_stop(tmp_path: Path) -> None:
    session = load_model(
        write_classifier(tmp_path, rounds=200), SETTINGS.model_copy(update={"max_batch": 1})
    ).session
    image = np.zeros((1, 32, 32, 3), np.uint8)

    def run_for_long() -> None:
        for _ in range(100):
            session.run(image)

    over = threading.Event()

    def tell() -> None:
        while not over.wait(0.01):
            session.terminate()  # again: between two runs it reaches neither

    telling = threading.Thread(target=tell)
    telling.start()
    try:
        with pytest.raises(Exception, match=r"[Tt]erminate"):
            run_for_long()
    finally:
        over.set()
        telling.join()
    assert session.run(image).shape == (1, 3)  # the flag was for that run alone


def test_an_output_that_turns_bad_is_an_error(tmp_path: Path) -> None:
    class Turned:
        rows: NDArray[Any] = np.full((1, 3), np.inf, np.float32)

        def run(self, *_: object) -> list[NDArray[Any]]:
            return [self.rows]

    session = load_model(write_classifier(tmp_path), SETTINGS).session
    assert isinstance(session, Session)
    session._session = Turned()
    for rows, fault in [(Turned.rows, "not finite"), (np.zeros((1, 2), np.float32), "not float32")]:
        session._session.rows = rows
        with pytest.raises(BadOutputError, match=fault):
            session.run(np.zeros((1, 32, 32, 3), np.uint8))


def test_warming_up_runs_every_size_and_stops_where_a_batch_takes_too_long() -> None:
    seen: list[int] = []
    now = [0.0]

    def run(images: NDArray[Any]) -> NDArray[Any]:
        seen.append(len(images))
        now[0] += 0.01 * len(images)
        return images

    image = np.zeros((2, 2, 3), np.uint8)
    assert warm_up(run, image, 12, 10.0, clock=lambda: now[0]) == (1, 2, 4, 8, 12)
    assert seen == [1, 2, 2, 4, 4, 8, 8, 12, 12]
    assert warm_up(run, image, 32, 0.05, clock=lambda: now[0]) == (1, 2, 4)
    assert warm_up(run, image, 32, 0.001, clock=lambda: now[0]) == (1,)


@pytest.mark.parametrize(("stalls", "sizes"), [(1, (1, 2, 4)), (2, (1, 2, 4)), (3, (1,))])
def test_a_machine_that_stalls_is_not_the_pace_of_a_batch(stalls: int, sizes: tuple[int, ...]) -> None:
    now, runs_of_two = [0.0], [0]

    def run(images: NDArray[Any]) -> NDArray[Any]:
        runs_of_two[0] += len(images) == 2
        stalled = len(images) == 2 and 2 <= runs_of_two[0] < 2 + stalls  # the first is not timed
        now[0] += 10.0 if stalled else 0.01
        return images

    assert warm_up(run, np.zeros((2, 2, 3), np.uint8), 4, 0.25, clock=lambda: now[0]) == sizes


def test_the_probe_runs_in_batches_of_the_size_that_was_warmed() -> None:
    seen: list[int] = []

    def run(images: NDArray[Any]) -> NDArray[Any]:
        seen.append(len(images))
        return images

    images = np.arange(8, dtype=np.uint8)[:, None]
    assert Probe(images, images + np.uint8(1), 1.0).check(run, 3) == 1.0
    assert seen == [3, 3, 2]
    assert Probe(images, images, 0.5).check(run, 3, (3,)) == 0.0
    assert seen[3:] == [3, 3, 3]  # the last is padded, and the padding is not compared
    with pytest.raises(ArtifactError, match=r"differs by 1, tolerance is 0\.5, in batches of 8"):
        Probe(images, images + np.uint8(1), 0.5).check(run, 8)
    with pytest.raises(ArtifactError, match="output is"):
        Probe(images, images[:7], 1.0).check(run, 8)


# --- threads ---


def test_threads_follow_the_quota(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cpus(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert quota(tmp_path) is None


def test_threads_follow_the_quota_of_the_own_group_and_of_those_above(tmp_path: Path) -> None:
    """On a host the root has none: a unit of systemd's has its own, and its slice may have one too."""
    unit = tmp_path / "system.slice" / "quatserve.service"
    unit.mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("12:pids:/elsewhere\n0::/system.slice/quatserve.service\n")
    assert quota(tmp_path, own) is None
    (unit / "cpu.max").write_text("300000 100000\n")
    assert quota(tmp_path, own) == 3.0
    (unit.parent / "cpu.max").write_text("200000 100000\n")
    assert quota(tmp_path, own) == 2.0
    (unit / "cpu.max").write_text("max 100000\n")
    assert quota(tmp_path, own) == 2.0


def test_threads_follow_the_older_kind_of_quota(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("200000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert quota(tmp_path) == 2.0
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert quota(tmp_path) is None
    assert quota(tmp_path / "nowhere") is None


def test_a_machine_under_load_does_not_shrink_the_batches() -> None:
    """A thread that waits for a processor works as fast as on a quiet machine."""

    def run(batch: NDArray[np.uint8]) -> NDArray[Any]:
        time.sleep(0.05)  # other threads have the processor
        return batch

    image = np.zeros((2, 2, 3), np.uint8)
    assert warm_up(run, image, max_batch=4, max_batch_s=0.02) == (1, 2, 4)
