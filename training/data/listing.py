"""The images of a user's folder, one by one: to which part each belongs, and why some are skipped.

A run keeps the list as `images.tsv`. What is held out is decided once, by the list's first writer.
"""

import csv
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quatserve.training.data.store import Reader, compact, fill_all
from quatserve.training.errors import UserError

LISTING = "images.tsv"
TRAINING, HELD_OUT = "training", "held-out"
SHOWN = 10  # names of skipped images on the terminal; the list has all


@dataclass(frozen=True)
class Entry:
    part: str
    label: str  # its class, where it has one
    name: str  # below the data's directory
    sha256: str = ""
    fault: str = ""  # why it is skipped


COLUMNS = tuple(field.name for field in dataclasses.fields(Entry))


@dataclass(frozen=True)
class Part:
    """How one part of the images is decoded: a reader, the arrays that it fills, and their shapes."""

    read: Reader
    arrays: Mapping[str, tuple[int, ...]]


def held_out(names: Mapping[str, Sequence[str]], share: float) -> set[str]:
    """A share of each class's images, at least one and never all, the same whatever the seed and the order.

    The digest of its name decides, so that a later run on the same folder holds out the same images.
    """
    held: set[str] = set()
    for members in names.values():
        count = min(max(round(share * len(members)), 1), len(members) - 1) if share else 0
        held.update(sorted(members, key=_digest)[:count])
    return held


def ingest(
    entries: Sequence[Entry],
    parts: Mapping[str, Part],
    cache: Path,
    files: Callable[[Entry], Sequence[Path]],
    *,
    progress: bool,
) -> tuple[Path, tuple[Entry, ...]]:
    """The directory of the decoded arrays below `cache`, and what became of every entry.

    They are decoded unless the same files were before. The directory gets its name when it is whole.
    """
    place = cache / _key(entries, parts, files)
    if not (place / LISTING).is_file():
        scratch = place.with_name(f".{place.name}.part")
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            scratch.mkdir(parents=True)
            _decode(entries, parts, scratch, files, progress)
            shutil.rmtree(place, ignore_errors=True)
            scratch.rename(place)
        except OSError as error:
            raise UserError(f"{place} could not be written ({error.strerror}): use --cache DIR") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return place, read_listing(place / LISTING)


def _decode(
    entries: Sequence[Entry],
    parts: Mapping[str, Part],
    scratch: Path,
    files: Callable[[Entry], Sequence[Path]],
    progress: bool,
) -> None:
    examined: dict[str, Entry] = {}
    for name, part in parts.items():
        mine = [entry for entry in entries if entry.part == name]
        arrays = [scratch / array_name(name, array) for array in part.arrays]
        outcomes = fill_all(
            part.read,
            [files(entry) for entry in mine],
            arrays,
            list(part.arrays.values()),
            title=f"decode {name}",
            progress=progress,
        )
        for entry, outcome in zip(mine, outcomes, strict=True):
            examined[entry.name] = dataclasses.replace(entry, sha256=outcome.sha256, fault=outcome.fault)
    judged = without_duplicates(examined[entry.name] for entry in entries)
    for name, part in parts.items():
        mine = [entry for entry in judged if entry.part == name]
        for array in part.arrays:
            compact(scratch / array_name(name, array), [i for i, entry in enumerate(mine) if not entry.fault])
    write_listing(scratch / LISTING, judged)


def without_duplicates(entries: Iterable[Entry]) -> list[Entry]:
    """The same bytes count once, a held-out image before a training one; in two classes they do not count."""
    entries = list(entries)
    copies: dict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.part != HELD_OUT):
        if not entry.fault:
            copies[entry.sha256].append(entry)
    faults: dict[str, str] = {}
    for first, *others in copies.values():
        if any(other.label != first.label for other in others):
            names = [entry.name for entry in (first, *others)]
            faults |= {name: f"in several classes: {', '.join(names)}" for name in names}
        else:
            faults |= {other.name: f"the same image as {first.name}" for other in others}
    return [dataclasses.replace(entry, fault=faults.get(entry.name, entry.fault)) for entry in entries]


def array_name(part: str, array: str) -> str:
    return f"{part}.{array}.npy"


def mapped(path: Path) -> Tensor:
    """An array on disk as a tensor, of which no more is in memory than is in use. Nothing may write to it."""
    with warnings.catch_warnings():
        # Mapped for reading alone: memory that could be written is refused beyond that of the machine.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.load(path, mmap_mode="r"))


def read_listing(path: Path) -> tuple[Entry, ...]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as stream:
        rows = csv.DictReader(stream, dialect="excel-tab")
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise UserError(f"{path} is no list of images: its columns are not {', '.join(COLUMNS)}")
        return tuple(Entry(**row) for row in rows)


def write_listing(path: Path, entries: Iterable[Entry]) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream:
        rows = csv.writer(stream, dialect="excel-tab")
        rows.writerow(COLUMNS)
        rows.writerows(dataclasses.astuple(entry) for entry in entries)
    part.replace(path)


def check_unchanged(recorded: Sequence[Entry], found: Sequence[Entry], data: Path) -> None:
    """Whether every image that a run was begun with is still what it was."""
    now = {entry.name: entry for entry in found}
    for entry in recorded:
        if not entry.fault and now[entry.name] != entry:
            reason = now[entry.name].fault or "its bytes are others"
            raise UserError(
                f"{data / entry.name} is not the image that the run was begun with ({reason}): "
                "put it back, or begin another run with another --out"
            )


def report_skipped(entries: Sequence[Entry]) -> None:
    """How many images are in each part, and which are in none."""
    counts = Counter(entry.part for entry in entries if not entry.fault)
    skipped = [entry for entry in entries if entry.fault]
    shown = ", ".join(f"{counts[part]:,} {part}" for part in (TRAINING, HELD_OUT))
    print(f"{shown} images" + (f"; {len(skipped):,} skipped:" if skipped else ""), file=sys.stderr)
    for entry in skipped[:SHOWN]:
        print(f"  {entry.name}: {entry.fault}", file=sys.stderr)
    if len(skipped) > SHOWN:
        print(f"  and {len(skipped) - SHOWN:,} more, listed in the run's {LISTING}", file=sys.stderr)


def _key(
    entries: Sequence[Entry], parts: Mapping[str, Part], files: Callable[[Entry], Sequence[Path]]
) -> str:
    """What the arrays are made from: names, sizes and times of the files, and how they are read."""
    made_from = [
        {name: repr(part) for name, part in parts.items()},
        [(e.part, e.label, e.name, [_stamp(path) for path in files(e)]) for e in entries],
    ]
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _digest(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()
