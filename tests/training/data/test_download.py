"""Downloads from a server on loopback: checked, resumed, and never half unpacked."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quatserve.training.commands.main import main
from quatserve.training.data.cifar import read_cifar
from quatserve.training.data.download import ARCHIVES, Archive, obtain
from quatserve.training.errors import UserError
from tests.training.loopback import FileServer, serving
from tests.training.tiny_data import SMALL_CIFAR, write_cifar


def archive_of(folder: Path) -> bytes:
    """As the official one: one folder with its files."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    return content.getvalue()


def source_of(server: FileServer) -> Archive:
    return Archive(SMALL_CIFAR, server.url, hashlib.md5(server.content).hexdigest())


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    write_cifar(tmp_path / "made", SMALL_CIFAR)
    return archive_of(tmp_path / "made" / SMALL_CIFAR.folder)


@pytest.fixture
def server(content: bytes) -> Iterator[FileServer]:
    with serving(FileServer(content)) as running:
        yield running


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_folder_is_all_that_is_left(tmp_path: Path, server: FileServer) -> None:
    out = tmp_path / "new" / "data"
    assert obtain(source_of(server), out) == out / SMALL_CIFAR.folder
    assert names(out) == [SMALL_CIFAR.folder]
    expected = read_cifar(SMALL_CIFAR, tmp_path / "made", "train")
    assert read_cifar(SMALL_CIFAR, out, "train").images.equal(expected.images)


def test_what_is_whole_is_not_fetched_again(tmp_path: Path, server: FileServer) -> None:
    obtain(source_of(server), tmp_path / "made")
    assert server.asked == []


def test_what_is_not_whole_is_replaced(tmp_path: Path, server: FileServer) -> None:
    broken = tmp_path / "made" / SMALL_CIFAR.folder / "test_batch.bin"
    broken.write_bytes(b"short")
    obtain(source_of(server), tmp_path / "made")
    assert broken.stat().st_size == 4 * 3073
    assert names(tmp_path / "made") == [SMALL_CIFAR.folder]


def test_missing_names_are_fetched_too(tmp_path: Path, server: FileServer) -> None:
    """`evaluate` needs them, and says that `download` brings them."""
    missing = tmp_path / "made" / SMALL_CIFAR.folder / SMALL_CIFAR.names_file
    missing.unlink()
    obtain(source_of(server), tmp_path / "made")
    assert missing.exists()


def test_a_broken_download_goes_on_where_it_stopped(tmp_path: Path, server: FileServer) -> None:
    server.break_after = 30_000
    with pytest.raises(UserError, match="run the same command again, it goes on where it stopped"):
        obtain(source_of(server), tmp_path / "data")
    assert names(tmp_path / "data") == ["archive.tar.gz.part"]
    obtain(source_of(server), tmp_path / "data")
    assert server.asked == [None, "bytes=30000-"]
    assert names(tmp_path / "data") == [SMALL_CIFAR.folder]


def test_a_server_without_ranges_sends_it_all_again(tmp_path: Path, server: FileServer) -> None:
    server.ranges, server.break_after = False, 10_000
    with pytest.raises(UserError):
        obtain(source_of(server), tmp_path / "data")
    obtain(source_of(server), tmp_path / "data")
    assert names(tmp_path / "data") == [SMALL_CIFAR.folder]


def test_a_part_that_is_whole_already_is_used(tmp_path: Path, server: FileServer) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/archive.tar.gz.part").write_bytes(server.content)
    obtain(source_of(server), tmp_path / "data")
    assert server.asked == [f"bytes={len(server.content)}-"]
    assert names(tmp_path / "data") == [SMALL_CIFAR.folder]


def test_a_wrong_digest_is_named_and_the_file_removed(tmp_path: Path, server: FileServer) -> None:
    source = source_of(server)
    server.content = server.content[:-1] + bytes([server.content[-1] ^ 1])
    found = hashlib.md5(server.content).hexdigest()
    with pytest.raises(UserError, match=f"MD5 digest {found} where {source.md5} is expected"):
        obtain(source, tmp_path / "data")
    assert names(tmp_path / "data") == []


def test_an_archive_at_hand_needs_no_server(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "archive.tar.gz"
    file.write_bytes(content)
    source = Archive(SMALL_CIFAR, "http://127.0.0.1:1/none", hashlib.md5(content).hexdigest())
    obtain(source, tmp_path / "data", file=file)
    assert names(tmp_path / "data") == [SMALL_CIFAR.folder]
    assert file.read_bytes() == content


def test_an_archive_that_leads_outside_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../outside.bin"))
        tar.addfile(tarfile.TarInfo(f"{SMALL_CIFAR.folder}/../../outside.bin"))
        link = tarfile.TarInfo(f"{SMALL_CIFAR.folder}/link.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "../../outside.bin"
        tar.addfile(link)
    file = tmp_path / "archive.tar.gz"
    file.write_bytes(content.getvalue())
    source = Archive(SMALL_CIFAR, "", hashlib.md5(content.getvalue()).hexdigest())
    with pytest.raises(UserError, match="another archive"):
        obtain(source, tmp_path / "data", file=file)
    assert names(tmp_path / "data") == []
    assert not (tmp_path / "outside.bin").exists()


@pytest.mark.parametrize("status", [404, 500])
def test_an_error_of_the_server_is_passed_on(tmp_path: Path, server: FileServer, status: int) -> None:
    server.status = status
    with pytest.raises(UserError, match=rf"could not be fetched \(HTTP Error {status}"):
        obtain(source_of(server), tmp_path / "data")


def test_official_addresses() -> None:
    assert {name: (archive.url, archive.md5) for name, archive in ARCHIVES.items()} == {
        "cifar10": (
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
        "cifar100": (
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "03b5dce01913d631647c71ecec9e9cb8",
        ),
    }


def test_the_command_checks_a_mirror_by_the_official_digest(
    tmp_path: Path, server: FileServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["download", "cifar10", "--out", str(tmp_path / "data"), "--url", server.url]) == 2
    error = capsys.readouterr().err
    assert "where c32a1d4ab5d03f1284b67883e8d87530 is expected" in error
    assert error.count("\n") == 1


def test_the_command_names_an_archive_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "absent.tar.gz"
    assert main(["download", "cifar100", "--out", str(tmp_path), "--archive", str(absent)]) == 2
    assert f"{absent} is missing" in capsys.readouterr().err


def test_kitti_needs_an_account(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["download", "kitti-road", "--out", str(tmp_path)]) == 2
    assert "https://www.cvlibs.net/datasets/kitti/eval_road.php" in capsys.readouterr().err
