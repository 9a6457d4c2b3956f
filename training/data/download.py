"""Gets the official archives of CIFAR: digests checked, unpacked whole or not at all."""

import hashlib
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from quatserve.training.data import kitti
from quatserve.training.data.cifar import CIFAR10, CIFAR100, CifarLayout, read_cifar, read_label_names
from quatserve.training.data.fetch import fetch
from quatserve.training.errors import UserError

OFFICIAL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Archive:
    layout: CifarLayout
    url: str
    md5: str  # as its authors publish it

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


ARCHIVES = {
    "cifar10": Archive(CIFAR10, f"{OFFICIAL}cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    "cifar100": Archive(CIFAR100, f"{OFFICIAL}cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
}


def download(
    dataset: str, out: Path, *, archive: Path | None = None, url: str | None = None, progress: bool = False
) -> Path:
    """The folder of a data set below `out`, fetched and unpacked unless it is whole already."""
    if dataset not in ARCHIVES:
        raise UserError(kitti.REGISTER)
    return obtain(ARCHIVES[dataset], out, file=archive, url=url, progress=progress)


def obtain(
    source: Archive, out: Path, *, file: Path | None = None, url: str | None = None, progress: bool = False
) -> Path:
    folder = out / source.layout.folder
    if is_whole(source.layout, out):
        return folder
    try:
        out.mkdir(parents=True, exist_ok=True)
        if file is None:
            fetched = fetch(url or source.url, out / source.name, progress=progress)
            check_digest(fetched, source.md5, remove=True)
            unpack(fetched, folder)
            fetched.unlink()
        else:
            check_digest(file, source.md5, remove=False)
            unpack(file, folder)
    except OSError as error:
        raise UserError(f"{folder} could not be written ({error}): nothing was changed") from error
    return folder


def is_whole(layout: CifarLayout, data: Path) -> bool:
    """Whether every file has its size."""
    try:
        for split in ("train", "test"):
            read_cifar(layout, data, split)
        read_label_names(layout, data)
    except UserError:
        return False
    return True


def check_digest(path: Path, expected: str, *, remove: bool) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing: give the archive that you have, or leave out --archive")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != expected:
        if remove:
            path.unlink()
        then = "it was removed, so try again" if remove else "it is not the official archive, or not whole"
        raise UserError(f"{path} has the MD5 digest {found} where {expected} is expected: {then}")


def unpack(archive: Path, folder: Path) -> None:
    """Put the archive's `folder.name` at `folder`, in one step once every file is there."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar:  # by hand: plain files of that one folder, and nothing that leads outside
                path = PurePosixPath(member.name)
                content = tar.extractfile(member) if member.isreg() else None
                if content and path.parent == PurePosixPath(folder.name):
                    with (part / path.name).open("wb") as file:
                        shutil.copyfileobj(content, file)
        if not any(part.iterdir()):
            raise UserError(f"{archive} has no folder {folder.name}: it is another archive")
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except tarfile.TarError as error:
        raise UserError(f"{archive} cannot be unpacked ({error}): get it again") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
