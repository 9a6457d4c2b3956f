"""Tells a shortage of memory from a damaged image: libjpeg and libwebp report both in the same words."""

import numpy as np

BYTES_PER_PIXEL = 16  # libwebp takes up to 12 for a canvas, a progressive JPEG 8 for its coefficients


def check_memory(pixels: int) -> None:
    """Raise MemoryError if what a codec takes for an image of so many pixels cannot be allocated."""
    np.empty(pixels * BYTES_PER_PIXEL, np.uint8)
