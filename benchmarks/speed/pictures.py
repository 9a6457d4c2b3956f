"""What is sent and what is run: CIFAR-10 test images, and road frames at KITTI's full size."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quatserve.service.artifact import Description
from quatserve.service.imaging.decoder import prepare
from quatserve.service.imaging.images import Target

DATA = Path(__file__).parents[2] / "data"
FULL_SIZE = (1242, 375)  # KITTI's frames: width, height
MAX_PIXELS = 1 << 25


def cifar_images(count: int) -> NDArray[np.uint8]:
    """CIFAR-10 test images, [count, 32, 32, 3]; noise, harder to decode, where the data is not there."""
    source = DATA / "cifar-10-batches-bin" / "test_batch.bin"
    if not source.exists():
        print("data/ holds no CIFAR-10: noise instead")
        return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    records = np.fromfile(source, np.uint8, count * 3073).reshape(-1, 3073)[:, 1:]
    return np.ascontiguousarray(records.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def small_files(count: int) -> list[bytes]:
    return [encoded(Image.fromarray(pixels), "PNG") for pixels in cifar_images(count)]


def frame_files(kind: str, count: int = 4) -> list[bytes]:
    """Road frames at full size, as PNG or JPEG files; noise that compresses like a photo without the data."""
    found = sorted(DATA.glob("*road*/training/image_2/*.png"))[:count]
    if found:
        frames = [Image.open(path).convert("RGB") for path in found]
    else:
        rng = np.random.default_rng(0)
        frames = [Image.fromarray(rng.integers(0, 256, (12, 40, 3), dtype=np.uint8)) for _ in range(count)]
    return [encoded(frame.resize(FULL_SIZE), kind) for frame in frames]


def encoded(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def prepared(files: list[bytes], description: Description) -> NDArray[np.uint8]:
    """The network's input for these files, by the service's own rule: [count, height, width, 3]."""
    target = Target.of(description)
    return np.stack([prepare(data, target, MAX_PIXELS).pixels for data in files])
