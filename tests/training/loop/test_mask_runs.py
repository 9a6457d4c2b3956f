"""Runs on images with masks, of one class and of several: they learn, and are scored at the images' size."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from quatserve.training.commands.main import main
from quatserve.training.data.kitti import IGNORED
from quatserve.training.evaluation.masks import class_ious, evaluate_masks, found_classes, pixel_table
from quatserve.training.evaluation.report import CONFUSION, EVALUATION
from quatserve.training.loop import run as runs
from quatserve.training.loop.losses import disagreement_and_union, segmentation_loss
from quatserve.training.networks.residual import Network, NetworkConfig
from tests.training.masked import write_masked

SMALL = ("--size", "24x32", "--width", "8", "--depth", "1", "--batch-size", "4", "--epochs", "12")
PLAIN = ("--set", "network.dilations=[]", "--set", "ema_decay=0.9", "--set", "task.colour=0")


@pytest.mark.parametrize(
    ("classes", "maps"), [((), 1), (("car", "tree"), 3)], ids=["one class", "several classes"]
)
def test_a_run_learns_its_masks(tmp_path: Path, classes: tuple[str, ...], maps: int) -> None:
    data, run = write_masked(tmp_path / "data", 24, classes), tmp_path / "run"
    options = (*SMALL, *PLAIN, "--compile", "off", "--device", "cpu")
    assert main(["fit", "masks-quaternion", "--data", str(data), "--out", str(run), *options]) == 0
    config = runs.read_config(run)
    assert config.labels == (classes or ("foreground",))
    assert config.recipe.paper_network.maps == maps
    assert main(["evaluate", str(run), "--data", str(data), "--device", "cpu"]) == 0
    report = json.loads((run / EVALUATION).read_text())
    assert report["scores"]["images"] == 4
    assert set(report["scores"]["iou"]) == {"background", *config.labels}
    assert report["scores"]["mean_iou"] > 0.5
    assert len(report["scores"]["worst"]) == 4
    assert (run / CONFUSION).is_file()
    assert main(["evaluate", str(run), "--data", str(data), "--device", "cpu", "--split", "all"]) == 0
    assert json.loads((run / EVALUATION).read_text())["scores"]["images"] == 24


def test_maps_are_scored_at_the_size_of_the_image(tmp_path: Path) -> None:
    """A network that answers with the truth of its own size misses only what shrinking loses."""
    data = write_masked(tmp_path / "data", 3)

    def left_half(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        maps = np.zeros(images.shape[:3], np.uint8)
        maps[:, :, : images.shape[2] // 2] = 255
        return maps

    names = [f"images/{i:03}.jpg" for i in range(3)]
    how: dict[str, Any] = {"height": 12, "width": 16, "threshold": 0.5, "progress": False}
    result = evaluate_masks(left_half, data, names, ["foreground"], **how)
    square, half = 9 * 8, 24 * 16
    assert result.counts.tolist() == [[3 * 24 * 16, 3 * (half - square)], [0, 3 * square]]
    assert result.ious["foreground"] == pytest.approx(square / half)


def test_the_largest_map_is_the_class() -> None:
    maps = np.zeros((3, 2, 2), np.uint8)
    maps[0], maps[1, 0, 0], maps[2, 1, 1] = 100, 150, 200
    assert found_classes(maps, (2, 2), 0.5).tolist() == [[1, 0], [0, 2]]


def test_the_threshold_decides_one_map() -> None:
    values = np.array([[127, 128]], np.uint8)
    assert found_classes(values, (2, 1), 0.5).tolist() == [[0, 1]]
    assert found_classes(values, (2, 1), 0.4).tolist() == [[1, 1]]


def test_pixels_that_do_not_count_are_in_no_table() -> None:
    truth = np.array([[0, 1, 2, IGNORED]], np.uint8)
    table = pixel_table(truth, np.array([[0, 2, 2, 1]], np.uint8), 3)
    assert table.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert class_ious(table) == [1.0, 0.0, 0.5]


def test_several_maps_of_equal_classes_cost_what_the_definition_says() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.double)
    targets = torch.randint(3, (2, 4, 5), generator=generator).to(torch.uint8)
    targets[0, 0, :2] = IGNORED
    valid = targets != IGNORED
    flat, labels = logits.permute(0, 2, 3, 1)[valid], targets[valid].long()
    p, truth = flat.softmax(1), F.one_hot(labels, 3)
    dice = [(2 * (p * truth)[:, c].sum() + 1) / (p[:, c].sum() + truth[:, c].sum() + 1) for c in range(3)]
    expected = 0.5 * F.cross_entropy(flat, labels) + 1 - torch.stack(dice).mean()
    torch.testing.assert_close(segmentation_loss(logits, targets, 0.5), expected)


def test_the_score_is_the_intersection_over_union_of_all_foreground_classes() -> None:
    truth = torch.tensor([[[0, 1, 2, IGNORED]]], dtype=torch.uint8)
    logits = 9.0 * F.one_hot(torch.tensor([[[1, 1, 1, 2]]]), 3).permute(0, 3, 1, 2)
    # class 1: found on three pixels, true on one of them; class 2: true on one, found on none
    assert disagreement_and_union(logits, truth).tolist() == [3.0, 4.0]


def test_a_network_of_several_maps() -> None:
    network = Network(NetworkConfig(task="segmentation", depth=1, width=8, maps=4)).eval()
    assert network(torch.zeros(2, 3, 12, 20)).shape == (2, 4, 12, 20)


@pytest.mark.parametrize(("stride", "kernel", "size"), [(1, 3, 32), (2, 3, 16), (4, 7, 8)])
def test_a_strided_stem_reduces_a_photograph(stride: Any, kernel: int, size: int) -> None:
    network = Network(NetworkConfig(depth=1, width=8, stem_stride=stride)).eval()
    assert network.stem.weight.shape[-2:] == (kernel, kernel)
    assert network.stem(network.components(torch.zeros(1, 3, 32, 32))).shape[2:] == (size, size)
    assert network.state_dict().keys() == Network(NetworkConfig(depth=1, width=8)).state_dict().keys()


def test_a_strided_stem_is_refused_where_maps_would_shrink() -> None:
    with pytest.raises(ValueError, match="a stem of stride 2 would shrink the maps"):
        NetworkConfig(task="segmentation", stem_stride=2)
