"""The little of curl that our examples use, for a machine without it."""

import argparse
import sys
from pathlib import Path

import httpx

FAILED = 22  # curl's own code for -f
parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("-s", action="store_true")
parser.add_argument("-f", action="store_true")
parser.add_argument("-F", metavar="NAME=@FILE", action="append", default=[])
parser.add_argument("-H", metavar="NAME: VALUE", action="append", default=[])
parser.add_argument("-o", metavar="FILE", type=Path)
parser.add_argument("--data-binary", metavar="@FILE")


def content(file: str) -> bytes:
    return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()


def main() -> int:
    options = parser.parse_args()
    parts = [part.split("=@") for part in options.F]
    answer = httpx.request(
        "POST" if parts or options.data_binary else "GET",
        options.url if options.url.startswith("http") else f"http://{options.url}",
        files=[(name, (file, content(file))) for name, file in parts] or None,
        content=content(options.data_binary[1:]) if options.data_binary else None,
        headers=dict(header.split(": ", 1) for header in options.H),
    )
    if options.f and answer.is_error:
        return FAILED
    if options.o:
        options.o.write_bytes(answer.content)
    else:
        sys.stdout.buffer.write(answer.content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
