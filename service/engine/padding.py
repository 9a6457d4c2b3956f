"""Batches of sizes that a session has been warmed up for."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]


def pad_to(buckets: Sequence[int], count: int) -> int:
    """The smallest bucket that holds `count`; `count` itself where there are no buckets."""
    return next((size for size in buckets if size >= count), count)


def padded(images: list[Images], buckets: Sequence[int]) -> Images:
    """One batch, its last image repeated to fill a bucket: of the rows, only the first are anybody's."""
    return np.array(images + images[-1:] * (pad_to(buckets, len(images)) - len(images)))
