"""CIFAR's binary files, byte by byte."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quatserve.training.data.cifar import CIFAR10, CIFAR100, CifarLayout, read_cifar, read_label_names
from quatserve.training.errors import UserError
from tests.training.tiny_data import SMALL_CIFAR, write_cifar


def write_record(path: Path, labels: list[int], planes: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(labels) + planes.tobytes())


@pytest.mark.parametrize(("layout", "labels"), [(CIFAR10, [7]), (CIFAR100, [3, 42])])
def test_the_last_label_byte_is_the_class(tmp_path: Path, layout: CifarLayout, labels: list[int]) -> None:
    one = single(layout)
    planes = np.arange(3072, dtype=np.uint32).astype(np.uint8)
    write_record(tmp_path / layout.folder / layout.test_files[0], labels, planes)
    data = read_cifar(one, tmp_path, "test")
    assert data.labels.tolist() == labels[-1:]
    assert data.images.shape == (1, 3, 32, 32)
    assert data.images.flatten().tolist() == planes.tolist()


def single(layout: CifarLayout) -> CifarLayout:
    return replace(layout, records_per_file={"train": 1, "test": 1})


def test_red_comes_first_then_rows(tmp_path: Path) -> None:
    planes = np.zeros((3, 32, 32), np.uint8)
    planes[0, 1, 2], planes[2, 31, 0] = 200, 100
    write_record(tmp_path / CIFAR10.folder / "test_batch.bin", [0], planes)
    image = read_cifar(single(CIFAR10), tmp_path, "test").images[0]
    assert image[0, 1, 2] == 200
    assert image[2, 31, 0] == 100
    assert image.sum() == 300


def test_training_files_follow_each_other(tmp_path: Path) -> None:
    write_cifar(tmp_path, SMALL_CIFAR)
    raw = b"".join((tmp_path / SMALL_CIFAR.folder / name).read_bytes() for name in SMALL_CIFAR.train_files)
    data = read_cifar(SMALL_CIFAR, tmp_path, "train")
    assert len(data) == 15
    assert data.labels.tolist() == [raw[i * 3073] for i in range(15)]
    part = data[5:8]
    assert part.labels.tolist() == data.labels[5:8].tolist()
    assert len(part) == len(part.images) == 3


def test_official_sizes() -> None:
    """180 MB of CIFAR-10 and CIFAR-100 in the binary version, as published."""
    assert CIFAR10.records_per_file["train"] * len(CIFAR10.train_files) == 50_000
    assert CIFAR100.records_per_file["train"] * len(CIFAR100.train_files) == 50_000
    assert CIFAR10.label_bytes + 3072 == 3_073
    assert CIFAR100.label_bytes + 3072 == 3_074


def test_names_are_read_and_counted(tmp_path: Path) -> None:
    write_cifar(tmp_path, SMALL_CIFAR)
    assert read_label_names(SMALL_CIFAR, tmp_path)[:2] == ("class_0", "class_1")
    (tmp_path / SMALL_CIFAR.folder / SMALL_CIFAR.names_file).write_text("airplane\nbird\n\n")
    with pytest.raises(UserError, match=r"batches\.meta\.txt has 2 names where 10 are expected"):
        read_label_names(SMALL_CIFAR, tmp_path)


def test_a_missing_file_is_named_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    write_cifar(tmp_path, SMALL_CIFAR)
    (tmp_path / SMALL_CIFAR.folder / "data_batch_4.bin").unlink()
    with pytest.raises(UserError, match=r"data_batch_4\.bin is missing: `quatserve download cifar10"):
        read_cifar(SMALL_CIFAR, tmp_path, "train")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_is_named_with_both(tmp_path: Path, change: int) -> None:
    write_cifar(tmp_path, SMALL_CIFAR)
    path = tmp_path / SMALL_CIFAR.folder / "data_batch_2.bin"
    with path.open("r+b") as stream:
        stream.truncate(3 * 3073 + change)
    message = rf"data_batch_2\.bin has {9219 + change:,} bytes where 9,219 are expected"
    with pytest.raises(UserError, match=message):
        read_cifar(SMALL_CIFAR, tmp_path, "train")
