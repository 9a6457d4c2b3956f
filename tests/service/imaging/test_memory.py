"""Where memory runs out, a valid image is not called damaged. Each case bounds a process of its own."""

import subprocess
import sys

import pytest

from tests.service.harness import REPOSITORY

DECODE = """
import io, resource, sys
from PIL import Image
from quatserve.service.errors import UnreadableImageError
from quatserve.service.imaging.images import decode

def encoded(kind, mode, side, **options):
    stream = io.BytesIO()
    Image.new(mode, (side, side)).save(stream, kind, **options)
    return stream.getvalue()

kind, mode = sys.argv[1:3]
options = {"progressive": True} if kind == "JPEG" else {}
valid, small = encoded(kind, mode, 3000, **options), encoded(kind, mode, 9, **options)
damaged = small[: len(small) // 2]
decode(small, 10**9)  # loads the plugin
pages = int(open("/proc/self/statm").read().split()[0])
free = int(sys.argv[3]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + free,) * 2)
try:
    decode(valid, 10**9)
except MemoryError:
    print("short of memory")
decode(small, 10**9)
try:
    decode(damaged, 10**9)
except UnreadableImageError:
    print("damaged")
"""


@pytest.mark.parametrize("free", [24, 45])  # MiB; the decoded image takes 34, libjpeg 26 more
@pytest.mark.parametrize(
    ("kind", "mode"),
    [("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "I;16"), ("JPEG", "RGB"), ("WEBP", "RGB"), ("WEBP", "RGBA")],
)
def test_a_valid_image_is_not_called_damaged_for_want_of_memory(kind: str, mode: str, free: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DECODE, kind, mode, str(free)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert "damaged" in lines  # even then
    assert "short of memory" in lines or (kind, mode, free) == ("PNG", "RGB", 45)
