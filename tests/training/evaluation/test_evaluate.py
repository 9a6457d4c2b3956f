"""Evaluation against results that are known beforehand, and the command around it."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from quatserve.training.commands.main import main
from quatserve.training.data.augment import normalise
from quatserve.training.data.cifar import CIFAR10, LAYOUTS, LabelledImages, read_cifar
from quatserve.training.data.kitti import IGNORED, list_frames, open_rgb, target_of
from quatserve.training.evaluation.labels import confusion_matrix, evaluate_labels
from quatserve.training.evaluation.overlay_picture import FOUND, INVENTED, MISSED, overlay, spread
from quatserve.training.evaluation.report import CONFUSION, EVALUATION, OVERLAYS
from quatserve.training.evaluation.road import FrameResult, evaluate_road
from quatserve.training.loop.checkpoint import write_tensors
from quatserve.training.loop.prediction import Images, predictor
from quatserve.training.loop.run import CHECKPOINT, STATE
from quatserve.training.networks.residual import Network, NetworkConfig
from quatserve.training.recipes import find_recipe
from tests.training.tiny_data import BACKGROUND, ROAD, road_recipe, write_cifar, write_frames, write_run

HEIGHT, WIDTH = 12, 40


def test_a_road_predictor_returns_rounded_probabilities() -> None:
    torch.manual_seed(0)
    network = Network(NetworkConfig(task="segmentation", depth=1, width=8)).eval()
    images = np.random.default_rng(0).integers(0, 256, (2, HEIGHT, WIDTH, 3), np.uint8)
    with torch.no_grad():
        logits = network(normalise(torch.from_numpy(images.transpose(0, 3, 1, 2))))[:, 0]
    maps = predictor(network, torch.device("cpu"))(images)
    assert maps.dtype == np.uint8
    assert np.array_equal(maps, np.round(255 / (1 + np.exp(-logits.numpy()))))


def test_a_label_predictor_returns_probabilities() -> None:
    network = Network(NetworkConfig(depth=1, width=8))
    images = np.zeros((2, 32, 32, 3), np.uint8)
    probabilities = predictor(network, torch.device("cpu"))(images)
    assert probabilities.shape == (2, 10)
    assert probabilities.sum(1) == pytest.approx(1)


def test_road_is_scored_at_both_sizes_over_all_frames(tmp_path: Path) -> None:
    """Five frames, one more than a batch; the network says road in the lower half of its map.

    The truth of the first is noise, which any resizing but the nearest would blend.
    """
    write_frames(tmp_path, each=2)
    frames = list_frames(tmp_path)[:5]
    noise = np.random.default_rng(0).integers(0, 2, (19, 62, 1), np.uint8)
    Image.fromarray(np.where(noise, ROAD, BACKGROUND).astype(np.uint8)).save(frames[0].truth)

    def lower_half(images: Images) -> NDArray[np.uint8]:
        maps = np.zeros(images.shape[:3], np.uint8)
        maps[:, HEIGHT // 2 :] = 255
        return maps

    result = evaluate_road(lower_half, frames, height=HEIGHT, width=WIDTH)
    assert [r.frame for r in result.results] == list(frames)
    at_frame, at_network = [], []
    for frame in frames:
        small = lower_half(np.zeros((1, HEIGHT, WIDTH, 3), np.uint8))[0]
        truth = open_rgb(frame.truth)
        full = np.asarray(Image.fromarray(small).resize(truth.size, Image.Resampling.BILINEAR)) >= 128
        at_frame.append((full, target_of(truth)))
        at_network.append((small >= 128, target_of(truth.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST))))
    assert result.frame_size.iou == pytest.approx(pooled_iou(at_frame))
    assert result.network_size.iou == pytest.approx(pooled_iou(at_network))
    assert result.results[0].iou == pytest.approx(pooled_iou(at_frame[:1]))


def pooled_iou(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    both = sum(int((found & (t == 1)).sum()) for found, t in pairs)
    either = sum(int(((found & (t != IGNORED)) | (t == 1)).sum()) for found, t in pairs)
    return both / either


def test_flip_averaging_takes_the_mean_of_both_probabilities() -> None:
    """Four images whose class only the left column tells; the mirror image misleads, or corrects."""
    table = {10: [0.6, 0.4], 20: [0.9, 0.1], 30: [0.1, 0.9]}
    images = torch.zeros(3, 3, 32, 32, dtype=torch.uint8)
    for i, (left, right) in enumerate([(10, 30), (20, 10), (10, 10)]):
        images[i, :, :, 0], images[i, :, :, -1] = left, right

    def predict(batch: Images) -> NDArray[np.float32]:
        return np.array([table[int(image[0, 0, 0])] for image in batch], np.float32)

    labels = torch.tensor([1, 0, 1])  # plain: 0, 0, 0; averaged: 1, 0, 0
    result = evaluate_labels(predict, LabelledImages(images, labels))
    assert result.error == pytest.approx(2 / 3)
    assert result.flip_error == pytest.approx(1 / 3)
    assert result.confusion.tolist() == [[1, 0], [2, 0]]


def test_confusion_has_true_classes_in_its_rows() -> None:
    matrix = confusion_matrix(np.array([0, 2, 2, 2]), np.array([1, 2, 0, 0]), 3)
    assert matrix.tolist() == [[0, 1, 0], [0, 0, 0], [2, 0, 1]]


def test_overlay_colours_what_is_found_invented_and_missed() -> None:
    grey = Image.new("RGB", (5, 1), (100, 100, 100))
    found = np.array([[True, True, False, False, True]])
    picture = np.asarray(overlay(grey, found, np.array([[1, 0, 1, 0, IGNORED]], np.uint8)))[0]
    blend = [tuple(round((100 + channel) / 2) for channel in colour) for colour in (FOUND, INVENTED, MISSED)]
    assert [tuple(pixel) for pixel in picture] == [*blend, (100, 100, 100), (100, 100, 100)]


def test_the_contact_sheet_goes_from_the_worst_frame_to_the_best(tmp_path: Path) -> None:
    write_frames(tmp_path)
    results = [
        FrameResult(f, np.zeros((1, 1), np.uint8), i / 10) for i, f in enumerate(list_frames(tmp_path))
    ]
    assert [round(10 * r.iou) for r in spread(results, 3)] == [0, 4, 8]
    assert spread(results, 20) == results


@pytest.mark.parametrize(("split", "frames"), [(None, 3), ("all", 9), ("held-out", 3), ("training", 6)])
def test_the_command_scores_a_road_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], split: str | None, frames: int
) -> None:
    write_frames(tmp_path / "data")
    run = tmp_path / "run"
    write_run(run, road_recipe())
    arguments = ["evaluate", str(run), "--data", str(tmp_path / "data"), "--json"]
    assert main(arguments + (["--split", split] if split else [])) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((run / EVALUATION).read_text())
    assert report["split"] == (split or "held-out")
    assert report["scores"]["frames"] == frames
    assert report["scores"]["frame_size"]["pixels"] == frames * (62 * 19 - 15)
    assert 0 <= report["scores"]["network_size"]["iou"] <= 1
    with Image.open(run / OVERLAYS) as picture:
        assert picture.size == (3 * 632 + 12, 64 + 12 + 199 * -(-frames // 3))


def test_a_run_without_a_split_is_scored_on_all_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_frames(tmp_path / "data")
    write_run(tmp_path / "run", road_recipe(holdout=0))
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "data")]) == 0
    printed = capsys.readouterr().out
    assert "all: 9 frames" in printed
    assert "IoU" in printed


@pytest.mark.parametrize(("split", "images"), [("held-out", 40), ("training", 60)])
def test_the_command_scores_a_classifier(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    split: str,
    images: int,
) -> None:
    small = dataclasses.replace(CIFAR10, records_per_file={"train": 20, "test": 10})
    monkeypatch.setitem(LAYOUTS, "cifar10", small)
    write_cifar(tmp_path / "data", small)
    recipe = dataclasses.replace(
        find_recipe("cifar10-quaternion"), network=NetworkConfig(depth=1, width=8), holdout=40
    )
    run = tmp_path / "run"
    write_run(run, recipe)
    assert main(["evaluate", str(run), "--data", str(tmp_path / "data"), "--split", split, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert scores["images"] == np.sum(scores["confusion"]) == images
    everything = read_cifar(small, tmp_path / "data", "train")
    chosen = everything[60:] if split == "held-out" else everything[:60]
    counts = np.bincount(chosen.labels.numpy(), minlength=10)
    assert np.sum(scores["confusion"], axis=1).tolist() == counts.tolist()
    assert scores["error"] == pytest.approx(1 - np.trace(scores["confusion"]) / images)
    with Image.open(run / CONFUSION) as picture:
        assert picture.width > 900


def test_an_unfinished_run_is_scored_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_frames(tmp_path / "data")
    recipe, run = road_recipe(epochs=3), tmp_path / "run"
    weights = write_run(run, recipe).state_dict()
    (run / CHECKPOINT).unlink()
    state = {f"average.{name}": value for name, value in weights.items()}
    write_tensors(run / STATE, state, {"rows": [{"epoch": 1}, {"epoch": 2}], "step": 8})
    assert main(["evaluate", str(run), "--data", str(tmp_path / "data")]) == 0
    assert "unfinished: 2 of 3 epochs" in capsys.readouterr().out.splitlines()[0]


def test_a_split_that_the_data_set_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_frames(tmp_path / "data")
    write_run(tmp_path / "run", road_recipe())
    arguments = ["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "data"), "--split", "test"]
    assert main(arguments) == 2
    assert "use --split held-out, training or all" in capsys.readouterr().err


def test_ground_truth_of_another_size_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_frames(tmp_path / "data")
    truth = tmp_path / "data/data_road/training/gt_image_2/uu_road_000002.png"
    open_rgb(truth).resize((60, 19)).save(truth)
    write_run(tmp_path / "run", road_recipe())
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "data")]) == 2
    assert f"{truth} is 60 x 19 where its frame is 62 x 19" in capsys.readouterr().err
