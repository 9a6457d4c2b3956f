"""What the hand-written parts of the web room gain over the frameworks' own, in one run.

    python benchmarks/web.py            # writes docs/benchmarks/web.md

- Direct dispatch against FastAPI's routing, and our HTTP protocol against uvicorn's: two services with the
  same functions, model and session options take turns; one CIFAR image per request, as a raw body. Beside
  requests per second stands the processor time of the service per request, which other programs disturb less.
- Our form parser against python-multipart: in one process, on the same forms.

Needs wrk. Whoever is not measured is stopped.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from python_multipart import MultipartParser
from python_multipart.multipart import parse_options_header

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.speed.figures import Figures, machine, spread  # noqa: E402
from benchmarks.speed.pictures import small_files  # noqa: E402
from benchmarks.speed.servers import Server, our_service  # noqa: E402
from benchmarks.speed.wrk import BOUNDARY, as_form, wrk  # noqa: E402
from quatserve.service.artifact import Precision  # noqa: E402
from quatserve.service.web.uploads import split_form  # noqa: E402

MODEL = REPOSITORY / "models" / "cifar10-quaternion" / "1"
VARIANT = str(Path(__file__).parent / "speed" / "service_variant.py")
OURS, THEIRS = "ours", "the framework's"
CONNECTIONS = (32, 1)
FORMS = {
    "one image of 3 kB": (1, 3_000),
    "16 images of 3 kB": (16, 3_000),
    "one photo of 2 MB": (1, 2_000_000),
}
FORMS_PER_ROUND_BYTES = 20_000_000


def services(
    variant: str, precision: Precision, options: argparse.Namespace
) -> Iterator[tuple[str, Figures]]:
    """(case, requests/s and CPU time per request) of the service and of a variant of it."""
    files = small_files(64)
    with contextlib.ExitStack() as stack:
        contenders = {
            OURS: stack.enter_context(our_service(MODEL, precision)),
            THEIRS: stack.enter_context(our_service(MODEL, precision, (VARIANT, variant))),
        }
        for connections in CONNECTIONS:
            figures = Figures()
            for _ in range(options.rounds):
                for name, server in contenders.items():
                    measure(server, files, connections, options.seconds, name, figures)
            yield f"{precision}, {connections} connection{'s' * (connections > 1)}", figures


def measure(
    server: Server, files: list[bytes], connections: int, seconds: int, name: str, figures: Figures
) -> None:
    with server.awake() as url:
        before = server.cpu_seconds()
        load = wrk(f"{url}/classify", files, "image/png", connections, seconds)
        used = server.cpu_seconds() - before
    figures.add(f"{name}, requests/s", load.requests_per_second)
    figures.add(f"{name}, us of CPU", used / (load.requests_per_second * seconds) * 1e6)


class Parts:
    """The (name, data) of each part, by the callbacks of python-multipart."""

    def __init__(self) -> None:
        self.found: list[tuple[bytes, bytearray]] = []
        self._field, self._value, self._disposition = bytearray(), bytearray(), b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._field, self._value = bytearray(), bytearray()

    def on_headers_finished(self) -> None:
        self.found.append((parse_options_header(self._disposition)[1][b"name"], bytearray()))

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.found[-1][1].extend(memoryview(data)[start:end])


def by_python_multipart(body: bytes) -> list[tuple[bytes, bytes]]:
    parts = Parts()
    callbacks: Any = {name: getattr(parts, name) for name in vars(Parts) if name.startswith("on_")}
    parser = MultipartParser(BOUNDARY.encode(), callbacks)
    parser.write(body)
    parser.finalize()
    return [(name, bytes(data)) for name, data in parts.found]


def by_us(body: bytes) -> list[tuple[bytes, bytes]]:
    return split_form(body, BOUNDARY.encode(), 16)


def parsers(count: int, size: int, rounds: int) -> Figures:
    """Microseconds per form of both parsers."""
    ending = b"\r\n--" + BOUNDARY.encode() + b"--\r\n"
    part = as_form(bytes(range(256)) * (size // 256)).removesuffix(ending)
    body = b"\r\n".join([part] * count) + ending
    assert by_us(body) == by_python_multipart(body)
    assert len(by_us(body)) == count
    figures = Figures()
    for _ in range(rounds):
        for name, parse in ((OURS, by_us), (THEIRS, by_python_multipart)):
            figures.add(f"{name}, us", microseconds(parse, body, max(1, FORMS_PER_ROUND_BYTES // len(body))))
    return figures


def microseconds(parse: Callable[[bytes], object], body: bytes, times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        parse(body)
    return (time.process_time() - begun) / times * 1e6


def service_row(what: str, figures: Figures) -> str:
    rate, cpu = "requests/s", "us of CPU"
    cells = [
        spread(figures.of(f"{OURS}, {rate}"), 0),
        spread(figures.ratios(f"{OURS}, {rate}", f"{THEIRS}, {rate}")),
        spread(figures.of(f"{OURS}, {cpu}"), 0),
        spread(figures.ratios(f"{THEIRS}, {cpu}", f"{OURS}, {cpu}")),
    ]
    return f"| {what} | {' | '.join(cells)} |"


def parser_row(what: str, figures: Figures) -> str:
    ours, theirs = f"{OURS}, us", f"{THEIRS}, us"
    cells = [spread(figures.of(name), 1) for name in (ours, theirs)]
    return f"| {what} | {' | '.join(cells)} | {spread(figures.ratios(theirs, ours), 1)} |"


def document(options: argparse.Namespace) -> str:
    head = "| | requests/s | times the framework's | CPU us per request | the framework's CPU is times ours |"
    lines = [
        "# The hand-written parts of the web room",
        "",
        f"`python benchmarks/web.py` on {machine()}.",
        f"Medians (quartiles) of {options.rounds} alternating rounds of {options.seconds} s; the ratios are",
        f"those within a round. The load generator shares the cores. {options.note}".rstrip(),
    ]
    for title, variant, precisions in (
        ("Direct dispatch, against FastAPI's routing", "fastapi", (Precision.INT8, Precision.FP32)),
        ("Our HTTP protocol, against uvicorn's", "uvicorn", (Precision.INT8,)),
    ):
        lines += ["", f"## {title}", "", head, "|---|---|---|---|---|"]
        for precision in precisions:
            lines += [service_row(what, found) for what, found in services(variant, precision, options)]
    lines += ["", "## Our form parser, against python-multipart", ""]
    lines += ["| form | us | python-multipart, us | times ours |", "|---|---|---|---|"]
    for what, (count, size) in FORMS.items():
        lines.append(parser_row(what, parsers(count, size, options.rounds)))
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement")
    parser.add_argument("--note", default="", help="a sentence for the report, such as what else was running")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "benchmarks" / "web.md")
    options = parser.parse_args(arguments)
    text = document(options)
    options.out.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
