"""A user's photographs: which are used, which are held out, and what they look like to the network."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from quatserve.service.imaging.images import Resize, Target, decode, resize
from quatserve.training.data.folder import FolderImages, FolderLayout, class_names, read_folder
from quatserve.training.data.listing import HELD_OUT, TRAINING, Entry
from quatserve.training.errors import UserError
from tests.training.photographs import noise, write_photographs

LAYOUT = FolderLayout(height=16, width=16, margin=1.25, held_share=0.2)


def read(data: Path, layout: FolderLayout = LAYOUT, recorded: tuple[Entry, ...] = ()) -> FolderImages:
    return read_folder(data, layout, data.parent / "cache", recorded=recorded)


def names_of(images: FolderImages, part: str) -> list[str]:
    return [entry.name for entry in images.entries if entry.part == part and not entry.fault]


def faults_of(images: FolderImages) -> dict[str, str]:
    return {entry.name: entry.fault for entry in images.entries if entry.fault}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photographs(tmp_path / "photos", {"cats": 10, "dogs": 20, "emus": 2})


def test_a_share_of_every_class_is_held_out(photos: Path) -> None:
    images = read(photos)
    held = names_of(images, HELD_OUT)
    assert [sum(name.startswith(f"{c}/") for name in held) for c in ("cats", "dogs", "emus")] == [2, 4, 1]
    assert len(images.train) == 25
    assert len(images.held) == 7
    assert not {*held} & {*names_of(images, TRAINING)}
    assert min(name for name in held if name.startswith("dogs/")) < "dogs/dogs-016"  # not the last ones


def test_labels_follow_the_names_of_the_folders(photos: Path) -> None:
    assert class_names(photos) == ("cats", "dogs", "emus")
    images = read(photos)
    expected = [class_names(photos).index(name.partition("/")[0]) for name in names_of(images, TRAINING)]
    assert images.train.labels.tolist() == expected


def test_pixels_are_those_of_the_service(photos: Path) -> None:
    """Held-out images at the network's size, training images a quarter larger."""
    images = read(photos)
    for part, side, found in ((HELD_OUT, 16, images.held), (TRAINING, 20, images.train)):
        for name, pixels in zip(names_of(images, part), found.images, strict=True):
            rgb = decode((photos / name).read_bytes(), 10_000)
            expected = resize(rgb, Target(side, side, Resize.CENTRE_SQUARE))
            assert np.array_equal(pixels.permute(1, 2, 0).numpy(), expected)


def test_the_split_is_the_same_for_every_size_and_on_another_day(photos: Path) -> None:
    first, other = read(photos), read(photos, dataclasses.replace(LAYOUT, height=12, width=12))
    assert names_of(first, HELD_OUT) == names_of(other, HELD_OUT)
    (photos / "cats" / "later.jpg").write_bytes((photos / "dogs" / "dogs-000.jpg").read_bytes() + b"\0")
    assert {*names_of(read(photos), HELD_OUT)} >= {n for n in names_of(first, HELD_OUT) if "dogs" in n}


def test_a_recorded_split_stays_when_images_are_added(photos: Path) -> None:
    first = read(photos)
    write_photographs(photos / "more", {"x": 9}, seed=500)
    (photos / "more" / "x").rename(photos / "cats" / "deeper")
    (photos / "more").rmdir()
    assert len(read(photos).train) > len(first.train)
    again = read(photos, recorded=first.entries)
    assert again.entries == first.entries
    assert torch.equal(again.held.images, first.held.images)


@pytest.mark.parametrize("change", ["changed", "removed"])
def test_a_recorded_image_that_is_no_more_the_same_is_named(photos: Path, change: str) -> None:
    first = read(photos)
    victim = photos / names_of(first, TRAINING)[3]
    if change == "changed":
        Image.fromarray(noise(30, 30, seed=5)).save(victim)
    else:
        victim.unlink()
    with pytest.raises(UserError, match=f"{victim} is not the image that the run was begun with"):
        read(photos, recorded=first.entries)


def broken_images() -> dict[str, bytes]:
    whole = io.BytesIO()
    Image.fromarray(noise(40, 40)).save(whole, "PNG")
    tiny = io.BytesIO()
    Image.fromarray(noise(30, 3)).save(tiny, "PNG")
    gif = io.BytesIO()
    Image.fromarray(noise(30, 30)).save(gif, "GIF")
    return {
        "empty": b"",
        "cut off": whole.getvalue()[:-800],
        "text": b"a note to myself",
        "gif": gif.getvalue(),
        "tiny": tiny.getvalue(),
    }


@pytest.mark.parametrize("kind", broken_images())
def test_an_image_that_cannot_be_used_is_skipped_by_name(photos: Path, kind: str) -> None:
    before = read(photos)
    (photos / "cats" / "bad.png").write_bytes(broken_images()[kind])
    images = read(photos)
    reason = {
        "empty": "the image is empty",
        "cut off": "the image is damaged",
        "text": "does not begin like an image",
        "gif": "the image is not one of PNG, JPEG, WEBP, BMP",
        "tiny": "3 x 30 pixels: tiny, under 4 a side",
    }[kind]
    assert list(faults_of(images)) == ["cats/bad.png"]
    assert reason in faults_of(images)["cats/bad.png"]
    assert len(images.train) + len(images.held) == len(before.train) + len(before.held) == 32


def test_rows_stay_with_their_names_behind_a_skipped_image(photos: Path) -> None:
    """Without the file that sorts first, and in a process of its own, nothing else changes."""
    before = read(photos)
    for i in range(160):  # enough for several processes
        (photos / "cats" / f"a{i:03}.jpg").write_bytes(b"no image")
    after = read(photos)
    assert len(faults_of(after)) == 160
    kept = dict(zip(names_of(after, TRAINING), after.train.images, strict=True))
    for name, pixels in zip(names_of(before, TRAINING), before.train.images, strict=True):
        if name in kept:
            assert torch.equal(kept[name], pixels)
    assert len(kept) >= 20


def test_the_same_image_counts_once_in_a_class_and_never_in_two(photos: Path) -> None:
    copied, contested = photos / "dogs" / "dogs-001.jpg", photos / "cats" / "cats-002.jpg"
    (photos / "dogs" / "copy.jpg").write_bytes(copied.read_bytes())
    (photos / "emus" / "cat.jpg").write_bytes(contested.read_bytes())
    faults = faults_of(read(photos))
    assert faults.keys() == {"cats/cats-002.jpg", "emus/cat.jpg"} | (
        faults.keys() & {"dogs/copy.jpg", "dogs/dogs-001.jpg"}
    )
    assert len(faults) == 3
    assert "in several classes: " in faults["emus/cat.jpg"]
    assert "cats/cats-002.jpg" in faults["emus/cat.jpg"]


def test_hidden_files_are_no_images(photos: Path) -> None:
    (photos / ".git").mkdir()
    (photos / "cats" / ".DS_Store").write_bytes(b"x")
    images = read(photos)
    assert not faults_of(images)
    assert class_names(photos) == ("cats", "dogs", "emus")


def test_decoded_images_are_found_again(photos: Path) -> None:
    read(photos)
    (place,) = (photos.parent / "cache").iterdir()
    stamps = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    read(photos)
    assert {path.name: path.stat().st_mtime_ns for path in place.iterdir()} == stamps
    assert len(list((photos.parent / "cache").iterdir())) == 1


def test_a_share_of_nothing_holds_out_nothing(photos: Path) -> None:
    images = read(photos, dataclasses.replace(LAYOUT, held_share=0.0))
    assert (len(images.train), len(images.held)) == (32, 0)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ([], "has 0 class folders where 2 or more are needed"),
        (["a"], "has 1 class folders where 2 or more are needed"),
        (["a", "empty/"], r"empty has no images: put some there, or remove the folder"),
    ],
)
def test_a_folder_that_is_no_data_set_is_refused(tmp_path: Path, made: list[str], message: str) -> None:
    write_photographs(tmp_path, {name: 3 for name in made if not name.endswith("/")})
    for name in made:
        (tmp_path / name).mkdir(exist_ok=True)
    with pytest.raises(UserError, match=message):
        class_names(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is no directory"):
        class_names(tmp_path / "nowhere")


def test_a_class_of_unusable_images_is_refused(photos: Path) -> None:
    for path in (photos / "emus").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(UserError, match=r"emus has no image to train on \(emus/emus-00\d\.jpg: .*remove it"):
        read(photos)
