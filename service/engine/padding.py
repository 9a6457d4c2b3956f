"""Pads a batch to a size that the session was warmed up for."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]


def pad_to(buckets: Sequence[int], count: int) -> int:
    """The smallest bucket that holds `count`; `count` itself without buckets."""
    return next((size for size in buckets if size >= count), count)


def padded(images: list[Images], buckets: Sequence[int]) -> Images:
    """One batch, with the last image repeated to fill the bucket; the caller drops the surplus rows."""
    return np.array(images + images[-1:] * (pad_to(buckets, len(images)) - len(images)))
