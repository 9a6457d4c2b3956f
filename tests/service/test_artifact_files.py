"""What is read from a models directory is bounded before it is read."""

import os
from pathlib import Path

import pytest

from quatserve.service.artifact import read_description, verify_digests
from quatserve.service.artifact_files import read_regular
from quatserve.service.errors import ArtifactError
from tests.service.artifacts import write_classifier

FILES = ["model.json", "model.onnx", "probe.npz"]


def test_a_file_of_the_largest_size_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, at most 4 are allowed"):
        read_regular(path, 4)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_read(tmp_path: Path, name: str, make: object) -> None:
    directory = write_classifier(tmp_path)
    (directory / name).unlink()
    assert callable(make)
    make(directory / name)
    with pytest.raises(ArtifactError, match=rf"{name}: cannot be read \((not a regular file|Is a dir)"):
        verify_digests(directory, read_description(directory))


@pytest.mark.parametrize("name", FILES)
def test_a_file_larger_than_described_is_not_read(tmp_path: Path, name: str) -> None:
    """Sparse files: they would fill the memory and not the disk."""
    directory = write_classifier(tmp_path)
    os.truncate(directory / name, 3_000_000_000)
    with pytest.raises(ArtifactError, match=rf"{name}: cannot be read \(3,000,000,000 bytes, at most"):
        verify_digests(directory, read_description(directory))
