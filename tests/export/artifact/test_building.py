"""Whole builds: the files they write, the scores they state, and the input they refuse."""

import dataclasses
import io
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import fx

from quatserve.export.artifact.from_run import build_run
from quatserve.export.artifact.history import begun_with
from quatserve.export.commands import main
from quatserve.export.datasets import spread
from quatserve.export.interface import Interface
from quatserve.export.proof.parity import reference
from quatserve.export.proof.runtime import predictor_of
from quatserve.export.proof.verify import verify
from quatserve.service.artifact import (
    Description,
    Precision,
    Task,
    Training,
    read_description,
    verify_digests,
)
from quatserve.training.data.cifar import LAYOUTS, LabelledImages, read_cifar
from quatserve.training.data.kitti import list_frames, open_rgb, split_frames
from quatserve.training.errors import UserError
from quatserve.training.evaluation.labels import evaluate_labels
from quatserve.training.evaluation.road import evaluate_road
from quatserve.training.loop.checkpoint import read_tensors, write_tensors
from quatserve.training.loop.prediction import predictor
from quatserve.training.loop.run import CHECKPOINT, FinishedRun, RunConfig, read_config, write_config
from quatserve.training.recipes.schema import as_json
from tests.export.tiny import Place, classifier_place, road_place
from tests.training.tiny_data import road_recipe

ALL = tuple(Precision)
FILES = {"model.onnx", "model.fp16.onnx", "model.int8.onnx", "model.json", "probe.npz", "README.md"}


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Place:
    place = classifier_place(tmp_path_factory.mktemp("classifier"), patch)
    build_run(place.run, place.data, place.out, ALL, max_loss=100)
    return place


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = road_place(tmp_path_factory.mktemp("road"))
    (place.run / "curves.png").write_bytes(b"a picture")
    build_run(place.run, place.data, place.out, ALL, max_loss=1)
    return place


def training_of(description: Description) -> Training:
    assert description.training is not None
    return description.training


def metric(description: Description, name: str, precision: Precision) -> float:
    return next(m.value for m in description.metrics if (m.name, m.precision) == (name, precision))


def test_the_classifier_is_complete_and_readable(classifier: Place) -> None:
    assert {path.name for path in classifier.out.iterdir()} == FILES
    description = read_description(classifier.out)
    verify_digests(classifier.out, description)
    assert description.labels == tuple(f"class_{i}" for i in range(10))
    assert {f.precision for f in description.files} == set(Precision)
    assert 0 < description.parity.max_difference < 1e-6
    assert description.parity.images == 20  # four real ones


def test_the_road_network_is_complete_and_readable(road: Place) -> None:
    assert {path.name for path in road.out.iterdir()} == FILES | {"curves.png", "overlay.jpg"}
    description = read_description(road.out)
    verify_digests(road.out, description)
    assert description.labels == ("road",)
    assert description.parity.max_levels in (0, 1)
    assert training_of(description).weights_licence == "CC BY-NC-SA 3.0"


def test_the_classifiers_score_equals_that_of_evaluate(classifier: Place) -> None:
    test = read_cifar(LAYOUTS["cifar10"], classifier.data, "test")
    expected = evaluate_labels(predictor(classifier.network, torch.device("cpu")), test).error
    assert metric(read_description(classifier.out), "error", Precision.FP32) == expected


def test_the_road_networks_scores_equal_those_of_evaluate(road: Place) -> None:
    held = split_frames(list_frames(road.data), 1)[1]
    predict = predictor(road.network, torch.device("cpu"))
    expected = evaluate_road(predict, held, height=12, width=40).frame_size
    description = read_description(road.out)
    assert metric(description, "iou", Precision.FP32) == pytest.approx(expected.iou, abs=0.002)
    assert metric(description, "soft_dice", Precision.FP32) == pytest.approx(expected.soft_dice, abs=0.002)


@pytest.mark.parametrize("kind", ["classifier", "road"])
def test_the_probe_expects_what_the_network_computes(kind: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(kind)
    with np.load(io.BytesIO((place.out / "probe.npz").read_bytes()), allow_pickle=False) as probe:
        arrays = dict(probe)
    assert set(arrays) == {"images", "fp32", "fp16", "int8"}
    assert len(arrays["images"]) == 8
    _, height, width, _ = arrays["images"].shape
    interface = Interface(task=Task(place.network.config.task), height=height, width=width)
    _, expected = reference(place.network, arrays["images"], interface)
    if kind == "road":
        assert np.abs(expected.astype(int) - arrays["fp32"]).max() <= 1
    else:
        np.testing.assert_allclose(arrays["fp32"], expected, atol=1e-5)


def test_no_frame_of_the_road_data_is_in_the_probe(road: Place) -> None:
    frames = [np.asarray(open_rgb(f.image).resize((40, 12))) for f in list_frames(road.data)]
    with np.load(road.out / "probe.npz", allow_pickle=False) as probe:
        apart = [np.abs(a.astype(int) - b).mean() for a in probe["images"] for b in frames]
    assert min(apart) > 20


def test_agreement_with_fp32_is_stated_of_training_and_test_images(classifier: Place) -> None:
    description = read_description(classifier.out)
    test = read_cifar(LAYOUTS["cifar10"], classifier.data, "test").images.permute(0, 2, 3, 1).numpy()
    answers = [
        predictor_of((classifier.out / name).read_bytes(), "probabilities")(test).argmax(1)
        for name in ("model.onnx", "model.int8.onnx")
    ]
    found = {(m.split, m.precision): m.value for m in description.metrics if m.name == "agreement"}
    assert found.keys() == {(s, p) for s in ("training", "test") for p in (Precision.FP16, Precision.INT8)}
    assert found["test", Precision.INT8] == np.mean(answers[0] == answers[1])


def test_calibration_and_comparison_images_do_not_overlap() -> None:
    train = LabelledImages(torch.empty(45_000, 0), torch.arange(45_000))
    calibration, agreement = (set(part.labels.tolist()) for part in spread(train))
    assert 512 <= len(calibration) <= 1_024
    assert 5_000 <= len(agreement) <= 10_000
    assert not calibration & agreement
    for part in (calibration, agreement):
        assert min(part) < 100
        assert max(part) > 44_900


def test_precisions_are_compared_on_held_out_images_if_there_are_any(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    place = classifier_place(tmp_path, patch, holdout=5)
    lines: list[str] = []
    description = build_run(place.run, place.data, place.out, ALL, max_loss=100, say=lines.append)
    assert {m.split for m in description.metrics} == {"last-5-of-training", "test"}
    assert [line.split(":")[0] for line in lines] == ["fp32", "fp16", "int8"]
    assert all("last-5-of-training" in line for line in lines[1:])


def test_only_the_requested_precisions_are_written(tmp_path: Path) -> None:
    place = road_place(tmp_path)
    description = build_run(place.run, place.data, place.out, [Precision.FP32])
    assert [f.precision for f in description.files] == [Precision.FP32]
    assert not (place.out / "model.int8.onnx").exists()


def test_a_named_precision_that_loses_too_much_is_an_error(tmp_path: Path) -> None:
    place = road_place(tmp_path)
    with pytest.raises(UserError, match="--max-loss"):
        build_run(place.run, place.data, place.out, ALL, max_loss=-1)
    assert not place.out.parent.parent.exists()


def test_an_unnamed_precision_that_loses_too_much_is_left_out(tmp_path: Path) -> None:
    place = road_place(tmp_path)
    lines: list[str] = []
    description = build_run(place.run, place.data, place.out, max_loss=-1, say=lines.append)
    assert [f.precision for f in description.files] == [Precision.FP32]
    assert {m.precision for m in description.metrics} == {Precision.FP32}
    assert [line.rpartition(" ")[2] for line in lines[1:]] == ["refused", "refused"]
    assert sorted(path.name for path in place.out.glob("*.onnx")) == ["model.onnx"]
    assert verify(place.out).keys() == {Precision.FP32}


def test_a_precision_that_overflows_on_the_probe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime computes fp16 in fp32 on a CPU and does not overflow, so the overflow is simulated."""

    def overflowing(model: bytes, output: str) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
        predict = predictor_of(model, output)
        kinds = {constant.data_type for constant in onnx.load_from_string(model).graph.initializer}
        factor = np.float32("nan" if onnx.TensorProto.FLOAT16 in kinds else 1)
        return lambda images: predict(images) * factor

    monkeypatch.setattr("quatserve.export.artifact.building.predictor_of", overflowing)
    place = classifier_place(tmp_path, monkeypatch)
    with pytest.raises(UserError, match="fp16 gives numbers that are not finite"):
        build_run(place.run, place.data, place.out, ALL, max_loss=100)
    assert not place.out.exists()


def test_the_int8_file_is_made_from_the_rounded_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def zeros(folded: fx.GraphModule, layers: set[str], *_: object) -> dict[str, torch.Tensor]:
        name = f"{min(layers)}.weight"
        return {name: torch.zeros_like(folded.get_parameter(name))}

    monkeypatch.setattr("quatserve.export.artifact.files.rounded_weights", zeros)
    place = classifier_place(tmp_path, monkeypatch)
    build_run(place.run, place.data, place.out, ALL, max_loss=100)
    arrays = {
        file: {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(place.out / file).graph.initializer}
        for file in ("model.onnx", "model.int8.onnx")
    }
    single, integer = arrays["model.onnx"], arrays["model.int8.onnx"]
    name = min(n for n in single if n.endswith(".weight") and f"{n}_quantized" in integer)
    assert single[name].any()
    assert not integer[f"{name}_quantized"].any()


def test_card_and_description_name_the_runs_that_a_run_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A classifier started from a road network keeps the licence of the road data."""
    place = classifier_place(tmp_path, monkeypatch)
    theirs = {"file": "theirs.h5", "sha256": "1234"}
    first = RunConfig(road_recipe(name="first", epochs=7), 3, "abc", {}, imported=theirs)
    road = road_recipe(name="second", epochs=9)
    second = RunConfig(road, 4, "def", {}, later=("commit fed",), start=FinishedRun(first, "5678"))
    config = dataclasses.replace(read_config(place.run), start=FinishedRun(second, "90ab"))
    write_config(place.run, config)
    training = training_of(build_run(place.run, place.data, place.out, [Precision.FP32]))
    assert training.start == (
        "recipe second, 9 epochs, seed 4, commit def, then commit fed; "
        "before that imported from theirs.h5 (sha256 1234)"
    )
    assert training.weights_licence == "CC BY-NC-SA 3.0"
    card = (place.out / "README.md").read_text()
    assert training.start is not None
    latest, oldest = training.start.split("; before that ")
    assert "It began with all weights but the head's of another run, and each of these with those of" in card
    assert f"\n- {latest}\n- {oldest}\n\n" in card
    assert "Not for commercial use." in card


def test_card_and_description_name_the_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the run's own teacher and that of the run it started from."""
    place = classifier_place(tmp_path, monkeypatch)
    config = read_config(place.run)
    road = FinishedRun(RunConfig(road_recipe(name="road", epochs=7), 3, "abc", {}), "5678")
    network = dataclasses.replace(config.recipe.paper_network, algebra="real", width=20)
    named = dataclasses.replace(config.recipe, name="wide", network=network)
    wide = FinishedRun(RunConfig(named, 4, "def", {}, start=road), "90ab")
    recipe = dataclasses.replace(config.recipe, distil=0.9)
    write_config(place.run, dataclasses.replace(config, recipe=recipe, teacher=wide))
    tensors, meaning = read_tensors(place.run / CHECKPOINT)
    write_tensors(place.run / CHECKPOINT, tensors, meaning | {"recipe": as_json(recipe)})
    training = training_of(build_run(place.run, place.data, place.out, [Precision.FP32]))
    assert training.start is None
    assert training.teacher == (
        f"recipe wide, {recipe.epochs} epochs, seed 4, commit def "
        "(begun with recipe road, 7 epochs, seed 3, commit abc)"
    )
    assert read_description(place.out).training == training
    assert training.weights_licence == "CC BY-NC-SA 3.0"
    card = " ".join((place.out / "README.md").read_text().split())
    assert "For 90 % of its loss it learned not from labels but from what another run's real network" in card
    assert f"answers about the training images ({training.teacher})." in card
    later = RunConfig(recipe, 0, "fed", {}, start=FinishedRun(read_config(place.run), ""))
    assert begun_with(later).endswith(f" (taught by {training.teacher})")


def test_a_run_without_a_teacher_has_no_teacher_field(tmp_path: Path) -> None:
    """Older services refuse unknown fields."""
    place = road_place(tmp_path)
    build_run(place.run, place.data, place.out, [Precision.FP32])
    assert "teacher" not in (place.out / "model.json").read_text()


def test_the_card_of_imported_weights_invents_no_training(tmp_path: Path) -> None:
    place = road_place(tmp_path, holdout=0)
    source = {"file": "theirs.h5", "sha256": "0" * 64}
    write_config(place.run, dataclasses.replace(read_config(place.run), imported=source))
    description = build_run(place.run, place.data, place.out, [Precision.FP32])
    known = training_of(description).model_dump(exclude_none=True)
    assert known.keys() == {"start", "dataset", "data_licence", "weights_licence"}
    assert "theirs.h5" in known["start"]
    card = (place.out / "README.md").read_text()
    assert "imported from `theirs.h5`" in card
    assert "seed" not in card
    assert "kept out of training" not in card


def test_without_held_out_images_agreement_with_fp32_decides(tmp_path: Path) -> None:
    place = road_place(tmp_path, holdout=0)
    lines: list[str] = []
    description = build_run(place.run, place.data, place.out, ALL, max_loss=1, say=lines.append)
    assert [(m.name, m.split, m.precision) for m in description.metrics] == [
        ("agreement", "training", Precision.FP16),
        ("agreement", "training", Precision.INT8),
    ]
    assert all(0.5 < m.value <= 1 for m in description.metrics)
    assert "int8: disagrees with fp32 by" in lines[2]


def spoil(place: Place, name: str, value: float, where: tuple[int, ...]) -> None:
    tensors, meaning = read_tensors(place.run / CHECKPOINT)
    tensors[name][where] = value
    write_tensors(place.run / CHECKPOINT, tensors, meaning)


def owe_another(way: str, place: Place) -> None:
    (place.run / CHECKPOINT).unlink()
    config = read_config(place.run)
    write_config(place.run, dataclasses.replace(config, **{way: FinishedRun(config, "5678")}))  # type: ignore[arg-type]


BAD: dict[str, tuple[Callable[[Place], object], str]] = {
    "unfinished": (lambda place: (place.run / CHECKPOINT).unlink(), "--seed 0 --resume` continues it"),
    "unfinished, from another": (partial(owe_another, "start"), "--seed 0 --from RUN --resume` continues it"),
    "unfinished, taught": (partial(owe_another, "teacher"), "--seed 0 --teacher RUN --resume` continues it"),
    "no run": (lambda place: shutil.rmtree(place.run), "run directory"),
    "nan": (lambda place: spoil(place, "stem.weight", float("nan"), (0, 0, 0, 0)), "stem.weight holds"),
    "infinite": (lambda place: spoil(place, "head.0.bias", float("inf"), (0,)), "head.0.bias holds"),
    "indefinite": (
        lambda place: spoil(place, "blocks.0.norm1.running_covariance", -9.0, (0, 0, 0)),
        "blocks.0.norm1: covariance of channel 0",
    ),
    "no data": (lambda place: shutil.rmtree(place.data), "gt_image_2 has no"),
    "damaged": (lambda place: (place.run / CHECKPOINT).write_bytes(b"garbage"), "damaged"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = road_place(tmp_path)
    change, message = BAD[what]
    change(place)
    code = main(["build", str(place.run), "--data", str(place.data), "--out", str(place.out)])
    error = capfd.readouterr().err
    assert code == 2
    assert error.count("\n") == 1
    assert error.startswith("error: ")
    assert message in error
    assert not (tmp_path / "models").exists()


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    place = road_place(tmp_path)
    tensors, meaning = read_tensors(place.run / CHECKPOINT)
    del tensors["stem.weight"]
    write_tensors(place.run / CHECKPOINT, tensors, meaning)
    with pytest.raises(UserError, match="not a network of this version"):
        build_run(place.run, place.data, place.out, ALL)
