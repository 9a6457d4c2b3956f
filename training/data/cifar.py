"""CIFAR-10 and CIFAR-100 in their official binary layout, whole and in memory.

A record is its label bytes (CIFAR-100: coarse, then fine) and then the red, green and blue planes of 32 x 32.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quatserve.training.errors import UserError

SIDE = 32
PIXEL_BYTES = 3 * SIDE * SIDE


@dataclass(frozen=True)
class CifarLayout:
    name: str
    folder: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    records_per_file: dict[str, int]
    label_bytes: int  # the last of them is the class
    names_file: str
    classes: int


CIFAR10 = CifarLayout(
    name="cifar10",
    folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test_files=("test_batch.bin",),
    records_per_file={"train": 10_000, "test": 10_000},
    label_bytes=1,
    names_file="batches.meta.txt",
    classes=10,
)
CIFAR100 = CifarLayout(
    name="cifar100",
    folder="cifar-100-binary",
    train_files=("train.bin",),
    test_files=("test.bin",),
    records_per_file={"train": 50_000, "test": 10_000},
    label_bytes=2,
    names_file="fine_label_names.txt",
    classes=100,
)
LAYOUTS = {layout.name: layout for layout in (CIFAR10, CIFAR100)}


@dataclass(frozen=True)
class LabelledImages:
    images: Tensor  # (N, 3, 32, 32) uint8
    labels: Tensor  # (N,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice) -> "LabelledImages":
        return LabelledImages(self.images[part], self.labels[part])


def read_cifar(layout: CifarLayout, data: Path, split: str) -> LabelledImages:
    """Every image of `split` ("train" or "test") below the directory `data`."""
    files = layout.train_files if split == "train" else layout.test_files
    records = np.concatenate(
        [_read_records(data / layout.folder / name, layout, layout.records_per_file[split]) for name in files]
    )
    labels = torch.from_numpy(records[:, layout.label_bytes - 1].astype(np.int64))
    planes = np.ascontiguousarray(records[:, layout.label_bytes :])
    return LabelledImages(torch.from_numpy(planes).reshape(-1, 3, SIDE, SIDE), labels)


def read_label_names(layout: CifarLayout, data: Path) -> tuple[str, ...]:
    path = data / layout.folder / layout.names_file
    if not path.is_file():
        raise UserError(f"{path} is missing: {_remedy(layout)}")
    names = tuple(path.read_text().split())
    if len(names) != layout.classes:
        raise UserError(
            f"{path} has {len(names)} names where {layout.classes} are expected: {_remedy(layout)}"
        )
    return names


def _read_records(
    path: Path, layout: CifarLayout, count: int
) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    if not path.is_file():
        raise UserError(f"{path} is missing: {_remedy(layout)}")
    record = layout.label_bytes + PIXEL_BYTES
    found = path.stat().st_size
    if found != count * record:
        raise UserError(
            f"{path} has {found:,} bytes where {count * record:,} are expected: {_remedy(layout)}"
        )
    return np.fromfile(path, np.uint8).reshape(count, record)


def _remedy(layout: CifarLayout) -> str:
    return f"`quatserve download {layout.name} --out DIR` fetches it, --data DIR names the directory"
