"""Thousands of damaged images: each answered, none with a server error."""

import asyncio
import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from quatserve.service.imaging.inspect import START_OF_SCAN
from tests.service.artifacts import write_both
from tests.service.harness import encoded, noise
from tests.service.image_files import png_chunk, png_file, sixteen_bit_rows
from tests.stress.connection import Answer, post, post_form, pour
from tests.stress.record import Record, measured, under_attack

CONNECTIONS = 4
ANSWER_WITHIN_S = 1.0
HUGE = 50_000  # pixels a side
TYPES = ("image/png", "image/jpeg", "image/webp", "image/bmp", "image/gif", "image/x-nonsense")
NAMES = ("a.png", "a.jpg", "a.webp", "a.bmp", "a.txt", "a")
PNG_CHUNK_NAMES = (b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"eXIf", b"iCCP", b"zTXt", b"acTL", b"fcTL")


def whole() -> list[bytes]:
    """Images of every format and mode that are taken, and of some formats that are not."""
    picture = Image.fromarray(noise(48, 40) // 16 * 16)
    frames = [Image.fromarray(noise(24, 24, seed)) for seed in range(3)]
    turned = Image.Exif()
    turned[0x0112] = 6
    wide = np.random.default_rng(0).integers(0, 65536, (20, 20, 3), dtype=np.uint16)
    modes = [encoded(picture.convert(mode)) for mode in ("RGB", "RGBA", "LA", "L", "P", "1", "I;16")]
    return [
        *modes,
        png_file(20, 20, 16, 2, sixteen_bit_rows(wide)),
        *(encoded(picture.convert(mode), "JPEG") for mode in ("RGB", "L", "CMYK")),
        encoded(picture, "JPEG", progressive=True, exif=turned),
        *(encoded(picture.convert("RGBA"), "WEBP", lossless=lossless) for lossless in (False, True)),
        *(encoded(picture.convert(mode), "BMP") for mode in ("RGB", "P", "1")),
        *(
            encoded(frames[0], kind, save_all=True, append_images=frames[1:])
            for kind in ("PNG", "WEBP", "GIF")
        ),
        encoded(picture, "TIFF"),
        encoded(Image.fromarray(noise(300, 200))),  # too large to be decoded on the event loop
    ]


def resized(data: bytes, width: int, height: int) -> bytes:
    """The same file with another size in its header, checksum included."""
    if data.startswith(b"\x89PNG"):
        header = struct.pack(">II", width, height) + data[24:29]
        return data[:8] + png_chunk(b"IHDR", header) + data[33:]
    if data.startswith(b"BM"):
        return data[:18] + struct.pack("<ii", width, height) + data[26:]
    frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    if data.startswith(b"\xff\xd8") and frame > 0:
        return data[: frame + 5] + struct.pack(">HH", height, width) + data[frame + 9 :]
    return data  # of a format whose header is not that simple


@cache
def many_scans() -> bytes:
    """A progressive JPEG whose last scan, of a few bytes, comes two thousand times: minutes of decoding."""
    data = encoded(Image.new("L", (4000, 4000), 9), "JPEG", progressive=True)
    last = data[data.rfind(START_OF_SCAN) : -2]
    return data[:-2] + 2000 * last + data[-2:]


class Mutator:
    """Each kind of damage in turn, drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._whole = whole()
        self._sized = [data for data in self._whole if resized(data, 1, 1) != data]
        self.kinds = (
            self.flipped,
            self.truncated,
            self.spliced,
            self.huge,
            self.rescanned,
            self.empty,
            self.untouched,
        )

    def _pick(self) -> bytes:
        return self._whole[self._rng.integers(len(self._whole))]

    def _pick_sized(self) -> bytes:
        return self._sized[self._rng.integers(len(self._sized))]

    def _cut(self, data: bytes) -> int:
        return int(self._rng.integers(len(data) + 1))

    def flipped(self) -> bytes:
        """Up to sixteen bits, half of the time among the first bytes, where the header is."""
        data = bytearray(self._pick())
        reach = len(data) if self._rng.random() < 0.5 else min(64, len(data))
        for _ in range(self._rng.integers(1, 17)):
            data[self._rng.integers(reach)] ^= 1 << int(self._rng.integers(8))
        return bytes(data)

    def truncated(self) -> bytes:
        data = self._pick()
        return data[: self._cut(data)]

    def spliced(self) -> bytes:
        """A piece of one file, or a well-formed chunk with nonsense in it, in the middle of another."""
        data, other = self._pick(), self._pick()
        begin, end = sorted((self._cut(other), self._cut(other)))
        piece = other[begin:end]
        if data.startswith(b"\x89PNG"):
            name = PNG_CHUNK_NAMES[self._rng.integers(len(PNG_CHUNK_NAMES))]
            return data[:33] + png_chunk(name, piece) + data[33:]
        at = self._cut(data)
        return data[:at] + piece + data[at:]

    def huge(self) -> bytes:
        return resized(self._pick_sized(), HUGE, HUGE)

    def rescanned(self) -> bytes:
        return many_scans()

    def empty(self) -> bytes:
        """No pixels, or no bytes."""
        sides = ((0, 0), (0, 5), (5, 0))
        if self._rng.random() < 0.1:
            return b""
        return resized(self._pick_sized(), *sides[self._rng.integers(3)])

    def untouched(self) -> bytes:
        return self._pick()

    def request(self, path: str, kind: int) -> bytes:
        """Raw or as a form, under a name and a type that are right only by chance."""
        data = self.kinds[kind]()
        named = TYPES[self._rng.integers(len(TYPES))]
        if self._rng.random() < 0.5:
            return post(path, data, named)
        return post_form(path, data, NAMES[self._rng.integers(len(NAMES))], named)

    def requests(self, path: str, count: int) -> Iterator[tuple[str, bytes]]:
        for index in range(count):
            kind = index % len(self.kinds)
            yield self.kinds[kind].__name__, self.request(path, kind)


def attack(root: Path, *, classify: int, segment: int) -> Record:
    write_both(root)
    record, kinds = Record("mutated images"), Counter[tuple[str, int]]()

    def told(kind: str, answer: Answer) -> None:
        record.answered(answer.status, answer.seconds)
        kinds[kind, answer.status // 100] += 1

    with under_attack(record, root, access_log=False) as running:
        for path, count in (("/classify", classify), ("/segment", segment)):  # once before, to be warm
            warm = Mutator(1).requests(path, count // 5)
            asyncio.run(pour(running.port, warm, CONNECTIONS, lambda *_: None))
        with measured(record, running):
            for path, count in (("/classify", classify), ("/segment", segment)):
                asyncio.run(pour(running.port, Mutator(2).requests(path, count), CONNECTIONS, told))
        lines = running.log().count("py.warnings")
        record.check("no warning fills the log", f"{lines} lines", lines == 0)
    _judge(record, kinds)
    return record


def _judge(record: Record, kinds: Counter[tuple[str, int]]) -> None:
    bad = {status for status in record.by_status_s if not 200 <= status < 500}
    record.check("never a 5xx, never unanswered", record.statuses(), not bad)
    taken = kinds["untouched", 2]
    record.check("whole images are taken", f"{taken:,} taken", taken > 0)
    for name, kind in ((f"{HUGE:,} x {HUGE:,} pixels", "huge"), ("thousands of scans", "rescanned")):
        refused = kinds[kind, 4]
        record.check(f"{name} never are", f"{refused:,} refused", kinds[kind, 2] == 0 < refused)
    slowest = record.quantile_s(1.0)
    promise = f"each within {ANSWER_WITHIN_S:g} s"
    record.check(promise, f"slowest {slowest:.3f} s", slowest <= ANSWER_WITHIN_S, quiet=True)
    record.check_memory()
