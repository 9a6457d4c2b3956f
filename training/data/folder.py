"""A user's photographs, one folder for each class: DIR/CLASS/.../IMAGE, in JPEG, PNG, WebP or BMP.

Images are in the order of their file names, across classes. Names that begin with a dot are left out. An
image is skipped, and named, if it cannot be read, is tiny, is a copy of another, or is in two classes. A
class without a usable image is refused.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from quatserve.training.data.cifar import LabelledImages
from quatserve.training.data.listing import (
    HELD_OUT,
    TRAINING,
    Entry,
    Part,
    array_name,
    check_unchanged,
    held_out,
    ingest,
    mapped,
)
from quatserve.training.data.store import ENLARGEMENT, Photographs
from quatserve.training.errors import UserError

IMAGES = "images"
ALL = "all"


@dataclass(frozen=True, kw_only=True)
class FolderLayout:
    """The size of the network's input, by how much training images exceed it, and what is held out."""

    height: int
    width: int
    margin: float = 1.0
    holdout: int = 0  # of the last images
    held_share: float = 0.0  # of each class, instead


@dataclass(frozen=True)
class FolderImages:
    """Both parts as mapped files, and the list of all images, the skipped ones among them."""

    entries: tuple[Entry, ...]
    train: LabelledImages
    held: LabelledImages


def class_names(data: Path) -> tuple[str, ...]:
    """The folders below `data`, in order of their names."""
    if not data.is_dir():
        raise UserError(f"{data} is no directory: --data names one with a folder for each class")
    names = sorted(path.name for path in data.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(names) < 2:
        raise UserError(
            f"{data} has {len(names)} class folders where 2 or more are needed: DIR/CLASS/IMAGE is the layout"
        )
    for name in names:
        if not _files(data / name):
            raise UserError(f"{data / name} has no images: put some there, or remove the folder")
    return tuple(names)


def list_images(data: Path, layout: FolderLayout) -> tuple[Entry, ...]:
    """Every file of every class in order of its name, with the part that it belongs to."""
    found = [
        (path.name, path.relative_to(data).as_posix(), name)
        for name in class_names(data)
        for path in _files(data / name)
    ]
    found.sort()
    if layout.holdout:
        cut = len(found) - layout.holdout
        held = {name for _, name, _ in found[max(cut, 0) :]}
    else:
        members: dict[str, list[str]] = defaultdict(list)
        for _, name, label in found:
            members[label].append(name)
        held = held_out(members, layout.held_share)
    return tuple(Entry(HELD_OUT if name in held else TRAINING, label, name) for _, name, label in found)


def read_folder(
    data: Path,
    layout: FolderLayout,
    cache: Path,
    *,
    recorded: Sequence[Entry] = (),
    progress: bool = False,
) -> FolderImages:
    """The images of `data`, decoded below `cache`; those of an earlier list, where there is one."""
    entries = tuple(Entry(e.part, e.label, e.name) for e in recorded) or list_images(data, layout)
    parts = {TRAINING: _photographs(layout, layout.margin), HELD_OUT: _photographs(layout, 1.0)}
    place, entries = ingest(entries, parts, cache, lambda entry: [data / entry.name], progress=progress)
    check_unchanged(recorded, entries, data)
    names = sorted({entry.label for entry in entries})
    _check_classes(data, names, entries)
    return FolderImages(entries, *(_part(place, part, names, entries) for part in (TRAINING, HELD_OUT)))


def read_part(
    data: Path, recorded: Sequence[Entry], part: str, layout: FolderLayout, names: Sequence[str], cache: Path
) -> LabelledImages:
    """One part of a run's images as the network is served them; "all" is every image of any such folder."""
    if part == ALL:
        wanted = list_images(data, dataclasses.replace(layout, holdout=0, held_share=0.0))
    else:
        wanted = tuple(entry for entry in recorded if entry.part == part and not entry.fault)
        if not any((data / entry.name).exists() for entry in wanted):
            raise UserError(
                f"{data} has none of the run's {len(wanted):,} {part} images: --data is the folder that it "
                f"was begun with, and --split {ALL} takes every image of another"
            )
    strange = sorted({entry.label for entry in wanted} - set(names))
    if strange:
        raise UserError(f"{data / strange[0]} is no class of the run: it knows {', '.join(names)}")
    entries = tuple(Entry(TRAINING, entry.label, entry.name) for entry in wanted)
    parts = {TRAINING: _photographs(layout, 1.0)}
    place, found = ingest(entries, parts, cache, lambda entry: [data / entry.name], progress=False)
    if part != ALL:
        check_unchanged([dataclasses.replace(entry, part=TRAINING) for entry in wanted], found, data)
    return _part(place, TRAINING, names, found)


def _photographs(layout: FolderLayout, margin: float) -> Part:
    least = -(-min(layout.height, layout.width) // ENLARGEMENT)
    height, width = round(margin * layout.height), round(margin * layout.width)
    return Part(Photographs(height, width, square=True, least=least), {IMAGES: (height, width, 3)})


def _part(place: Path, part: str, names: Sequence[str], entries: Sequence[Entry]) -> LabelledImages:
    labels = [names.index(entry.label) for entry in entries if entry.part == part and not entry.fault]
    images = mapped(place / array_name(part, IMAGES)).permute(0, 3, 1, 2)
    return LabelledImages(images, torch.tensor(labels, dtype=torch.long))


def _check_classes(data: Path, names: Sequence[str], entries: Sequence[Entry]) -> None:
    usable = {entry.label for entry in entries if entry.part == TRAINING and not entry.fault}
    for name in names:
        if name not in usable:
            first = next(entry for entry in entries if entry.label == name)
            reason = f"{first.name}: {first.fault}" if first.fault else "all of them are held out"
            raise UserError(f"{data / name} has no image to train on ({reason}): add some, or remove it")


def _files(folder: Path) -> list[Path]:
    """At any depth, but for hidden ones."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
