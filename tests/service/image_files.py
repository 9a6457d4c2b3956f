"""Image files written byte by byte: what Pillow itself does not write."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_file(width: int, height: int, depth: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + extra
        + png_chunk(b"IDAT", zlib.compress(rows))
        + png_chunk(b"IEND", b"")
    )


def sixteen_bit_rows(values: NDArray[np.uint16]) -> bytes:
    return b"".join(b"\0" + row.astype(">u2").tobytes() for row in values.reshape(len(values), -1))


def run_length_bmp(width: int, height: int, first: bytes = b"") -> bytes:
    """Pixels of colour 0 in the shortest codes: per line, one pixel and the end of the line."""
    palette, codes = bytes(4 * 256), first + b"\1\0\0\0" * height + b"\0\1"
    offset = 14 + 40 + len(palette)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(codes), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", offset + len(codes), 0, 0, offset) + header + palette + codes
