"""KITTI's road frames: which files, which pixels, which split."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from quatserve.training.data.kitti import (
    IGNORED,
    Frame,
    list_frames,
    open_rgb,
    read_road,
    split_frames,
    target_of,
)
from quatserve.training.errors import UserError
from quatserve.training.loop.sources import Source, read_data
from quatserve.training.recipes.schema import Segmentation
from tests.training.tiny_data import road_recipe, write_frames

FOLDER = Path("data_road/training")


def test_lanes_are_another_task(tmp_path: Path) -> None:
    write_frames(tmp_path)
    lane = tmp_path / FOLDER / "gt_image_2/um_lane_000000.png"
    lane.write_bytes((tmp_path / FOLDER / "gt_image_2/um_road_000000.png").read_bytes())
    frames = list_frames(tmp_path)
    assert [frame.name for frame in frames] == [
        f"{c}_00000{i}" for c in ("um", "umm", "uu") for i in range(3)
    ]
    assert frames[3].image.name == "umm_000000.png"
    assert frames[3].truth.name == "umm_road_000000.png"


@pytest.mark.parametrize(
    ("colour", "target"),
    [
        ((255, 0, 255), 1),
        ((255, 0, 0), 0),
        ((0, 0, 0), IGNORED),
        ((0, 0, 255), IGNORED),
        ((128, 0, 128), 1),
        ((127, 0, 255), IGNORED),
        ((128, 255, 127), 0),
    ],
)
def test_red_says_valid_and_blue_says_road(colour: tuple[int, int, int], target: int) -> None:
    assert target_of(Image.new("RGB", (1, 1), colour)).tolist() == [[target]]


def frames_of(**counts: int) -> tuple[Frame, ...]:
    return tuple(
        Frame(category, f"{i:06}", Path(), Path()) for category, count in counts.items() for i in range(count)
    )


def test_the_last_frames_of_each_category_are_held_out() -> None:
    train, held = split_frames(frames_of(um=20, umm=18, uu=17))
    kept = {"um": 4, "umm": 2, "uu": 1}
    assert [frame.name for frame in train] == [
        f"{c}_{i:06}" for c, count in kept.items() for i in range(count)
    ]
    assert len(held) == 48
    assert [frame.number for frame in held if frame.category == "um"] == [f"{i:06}" for i in range(4, 20)]


def test_nothing_is_in_both_parts() -> None:
    frames = frames_of(um=5, umm=1, uu=3)
    for holdout in range(7):
        train, held = split_frames(frames, holdout)
        assert sorted(f.name for f in train + held) == sorted(f.name for f in frames)


def test_frames_are_resized_with_antialiasing_and_truth_is_not_blended(tmp_path: Path) -> None:
    write_frames(tmp_path)
    frames = list_frames(tmp_path)[:2]
    road = read_road(frames, 8, 30)
    assert road.images.shape == (2, 3, 8, 30)
    expected = np.asarray(open_rgb(frames[1].image).resize((30, 8), Image.Resampling.BILINEAR))
    assert np.array_equal(road.images[1].permute(1, 2, 0).numpy(), expected)
    truth = np.asarray(open_rgb(frames[1].truth).resize((30, 8), Image.Resampling.NEAREST))
    assert np.array_equal(road.targets[1].numpy() == 1, (truth == (255, 0, 255)).all(2))
    assert set(np.unique(road.targets)) == {0, 1, IGNORED}


def test_frames_of_the_right_size_are_untouched(tmp_path: Path) -> None:
    write_frames(tmp_path)
    frames = list_frames(tmp_path)[:1]
    image = read_road(frames, 19, 62).images[0].permute(1, 2, 0).numpy()
    assert np.array_equal(image, np.asarray(open_rgb(frames[0].image)))


def test_ground_truth_without_its_frame_is_named(tmp_path: Path) -> None:
    write_frames(tmp_path)
    (tmp_path / FOLDER / "image_2/umm_000001.png").unlink()
    with pytest.raises(UserError, match=r"umm_road_000001\.png has no frame: .*umm_000001\.png is missing"):
        list_frames(tmp_path)


def test_without_data_people_learn_where_to_register(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no \*_road_\*\.png: .*cvlibs\.net"):
        list_frames(tmp_path)


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, pixels: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", pixels)
        + png_chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a picture",
        png(62, 19, zlib.compress(bytes(100))),
        png(62, 19, b"\xff" * 50),
        png(100_000, 100_000, zlib.compress(b"")),
        png(62, 19, zlib.compress(bytes(19 * (1 + 62 * 3))))[:60],
    ],
    ids=["empty", "text", "too short", "no deflate", "bomb", "cut off"],
)
def test_an_unreadable_image_is_named(tmp_path: Path, content: bytes) -> None:
    write_frames(tmp_path)
    broken = tmp_path / FOLDER / "image_2/uu_000000.png"
    broken.write_bytes(content)
    with pytest.raises(UserError, match=r"uu_000000\.png cannot be read as an image"):
        read_road(list_frames(tmp_path), 8, 30)


def test_frames_are_smaller_at_first_and_never_where_they_are_scored(tmp_path: Path) -> None:
    write_frames(tmp_path)
    growing = Segmentation(sizes=((0.0, 0.5), (0.5, 1.0)))
    data = read_data(road_recipe(epochs=2, task=growing, height=12, width=40), Source(tmp_path))
    epochs = [data.epoch(number, seed=0).batches for number in range(2)]
    sizes = [{tuple(batch.inputs.shape[2:]) for batch in batches} for batches in epochs]
    assert sizes == [{(6, 20)}, {(12, 40)}]
    held_out = data.validation()
    assert held_out is not None
    assert {tuple(batch.inputs.shape[2:]) for batch in held_out} == {(12, 40)}


def test_a_recipe_with_shadows_trains_with_them_and_scores_without(tmp_path: Path) -> None:
    write_frames(tmp_path)
    pictures = {}
    for shadow in (0.0, 0.9):
        only = Segmentation(flip=False, shadow=shadow)
        data = read_data(road_recipe(task=only, holdout=1), Source(tmp_path))
        held_out = data.validation()
        assert held_out is not None
        trained = torch.cat([batch.inputs for epoch in range(4) for batch in data.epoch(epoch, 0).batches])
        pictures[shadow] = trained, torch.cat([batch.inputs for batch in held_out])
    assert pictures[0.9][0].mean() < pictures[0.0][0].mean() - 0.05
    assert torch.equal(pictures[0.9][1], pictures[0.0][1])
