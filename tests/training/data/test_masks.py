"""Images with masks: what a mask may be, and what it becomes at the network's size."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quatserve.training.data.listing import HELD_OUT
from quatserve.training.data.masks import MaskedImages, MasksLayout, class_names, read_pairs
from quatserve.training.errors import UserError
from tests.training.masked import write_masked

LAYOUT = MasksLayout(height=12, width=16, held_share=0.25)


def read(data: Path) -> tuple[dict[str, str], MaskedImages, MaskedImages]:
    """Why images were skipped; both parts."""
    entries, train, held = read_pairs(data, LAYOUT, data.parent / "cache")
    return {entry.name: entry.fault for entry in entries if entry.fault}, train, held


@pytest.mark.parametrize("foreground", [255, 1])
def test_one_class_is_0_and_255_or_0_and_1(tmp_path: Path, foreground: int) -> None:
    data = write_masked(tmp_path / "data", 8, foreground=foreground)
    assert class_names(data) == ("foreground",)
    faults, train, held = read(data)
    assert (faults, len(train), len(held)) == ({}, 6, 2)
    assert set(train.targets.unique().tolist()) == {0, 1}


def test_targets_are_the_nearest_pixels_of_the_masks(tmp_path: Path) -> None:
    data = write_masked(tmp_path / "data", 8, ("car", "tree"))
    assert class_names(data) == ("car", "tree")
    _, train, _ = read(data)
    for name, target in zip(train.names, train.targets, strict=True):
        mask = np.asarray(Image.open(data / "masks" / f"{Path(name).stem}.png"))
        assert np.array_equal(target, mask[1::2, 1::2])
    assert set(train.targets.unique().tolist()) == {0, 1, 2, 255}


def test_the_split_does_not_take_the_last_images(tmp_path: Path) -> None:
    entries, *_ = read_pairs(write_masked(tmp_path / "data", 20), LAYOUT, tmp_path / "cache")
    held = [entry.name for entry in entries if entry.part == HELD_OUT]
    assert len(held) == 5
    assert min(held) < "images/015"


def test_palette_masks_are_their_indices(tmp_path: Path) -> None:
    data = write_masked(tmp_path / "data", 4, ("car", "tree"))
    _, before, _ = read(data)
    for path in (data / "masks").iterdir():
        mask = Image.open(path)
        mask.load()
        mask.putpalette([value for i in range(256) for value in (i, 255 - i, 7)])
        assert mask.mode == "P"
        mask.save(path)
    _, after, _ = read(data)
    assert after.targets.equal(before.targets)


def test_an_image_without_a_mask_is_skipped(tmp_path: Path) -> None:
    data = write_masked(tmp_path / "data", 8)
    (data / "masks" / "003.png").unlink()
    (data / "images" / "005.jpg").write_bytes(b"x")
    faults, train, held = read(data)
    assert faults["images/003.jpg"] == "has no mask masks/003.png"
    assert "does not begin like an image" in faults["images/005.jpg"]
    assert len(train) + len(held) == 6


def save(data: Path, pixels: object, name: str = "002.png") -> None:
    Image.fromarray(np.asarray(pixels, np.uint8)).save(data / "masks" / name)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: save(data, np.zeros((5, 7))), r"masks/002\.png is 7 x 5 where its image is 32 x 24"),
        (
            lambda data: save(data, np.full((24, 32), 3)),
            r"masks/002\.png has the value 3 where 0 to 2 and 255",
        ),
        (lambda data: save(data, np.zeros((24, 32, 3))), r"masks/002\.png has the mode RGB: a mask has one"),
        (lambda data: save(data, np.zeros((24, 32)), "x.png"), r"x\.png has no image images/x\.\*"),
        (
            lambda data: shutil.copy(data / "images/001.jpg", data / "images/001.png"),
            "would have the same mask",
        ),
        (
            lambda data: (data / "classes.txt").write_text("a\na\n"),
            r"classes\.txt has 2 names: give 1 to 100",
        ),
    ],
)
def test_masks_that_contradict_are_refused(tmp_path: Path, spoil, message: str) -> None:  # type: ignore[no-untyped-def]
    data = write_masked(tmp_path / "data", 4, ("car", "tree"))
    spoil(data)
    with pytest.raises(UserError, match=message):
        read(data)


def test_a_folder_without_masks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(UserError, match=r"masks is no directory: DIR/images/NAME\.\* and DIR/masks/NAME\."):
        class_names(tmp_path)


def test_a_single_class_knows_no_other_values(tmp_path: Path) -> None:
    data = write_masked(tmp_path / "data", 4)
    save(data, np.full((24, 32), 7))
    with pytest.raises(UserError, match="has the value 7 where 0 and 255, or 0 and 1 are known"):
        read(data)
