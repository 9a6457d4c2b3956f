"""The little of curl that the README uses, for a machine without it."""

import argparse
import sys
from pathlib import Path

import httpx

parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("-s", action="store_true")
parser.add_argument("-F", metavar="NAME=@FILE", action="append", default=[])
parser.add_argument("-H", metavar="NAME: VALUE", action="append", default=[])
parser.add_argument("-o", metavar="FILE", type=Path)


def main() -> None:
    options = parser.parse_args()
    parts = [part.split("=@") for part in options.F]
    files = [(name, (path, Path(path).read_bytes())) for name, path in parts]
    answer = httpx.request(
        "POST" if files else "GET",
        f"http://{options.url}",
        files=files or None,
        headers=dict(header.split(": ", 1) for header in options.H),
    )
    if options.o:
        options.o.write_bytes(answer.content)
    else:
        sys.stdout.buffer.write(answer.content)


if __name__ == "__main__":
    main()
