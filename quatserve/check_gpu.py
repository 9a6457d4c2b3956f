"""The command `quatserve check-gpu`: everything that only a GPU can show, in one table and one report.

It stands above the packages, because training cannot be imported by the service: its rows would be one more
section in `sections`.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TextIO

from quatserve.service.check import correct, host, lasting, over_http, speed
from quatserve.service.check.bench import Bench
from quatserve.service.check.report import (
    EXIT_NO_GPU,
    Check,
    Row,
    as_json,
    exit_code,
    lines,
    run_checks,
)
from quatserve.service.command_line import CommandParser, run, settings_from
from quatserve.service.engine.cuda.driver import find_gpu
from quatserve.service.errors import DeviceUnavailableError, NoGpuError, SettingsError

DESCRIPTION = "Check this host's GPU with the models of a directory. Nothing is written but the report."
EPILOG = "Exit codes: 0 if every check passed, 1 if one failed, 2 for a bad setting, 3 if there is no GPU."
SETTINGS = ("models_dir", "max_batch", "gpu_memory_bytes")


def sections(bench: Bench) -> list[tuple[str, Check]]:
    """Every check, in order. The first must pass for the others to run."""
    engine = {
        "probes": correct.check_probes,
        "INT8": correct.check_int8,
        "memory limit": correct.check_memory_limit,
        "copies": correct.check_copies,
        "all models at once": correct.check_together,
        "alternating sizes": speed.check_alternating,
        "fp16": speed.check_fp16,
        "options": speed.check_options,
        "CUDA graphs": speed.check_cuda_graphs,
        "swaps": lasting.check_swaps,
        "service": over_http.check_service,
    }
    return [(name, partial(check, bench)) for name, check in engine.items()]


def main(words: Sequence[str]) -> int:
    return run(_check, words[1:])


def _check(arguments: Sequence[str]) -> int:
    parser = CommandParser(prog="quatserve check-gpu", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "--report",
        default="gpu-report.json",
        metavar="FILE",
        help="- for standard output (default: %(default)s)",
    )
    parser.add_settings(SETTINGS)
    options = parser.parse_args(arguments)
    bench = Bench(settings=settings_from(options))
    bench.artifacts()  # a bad models directory is told before anything is measured
    try:
        find_gpu()
    except NoGpuError as error:
        print(f"nothing to check: {error}", file=sys.stderr)
        return EXIT_NO_GPU
    except DeviceUnavailableError:
        pass  # a row of the report
    with ExitStack() as stack:
        file = _opened(options.report, stack)
        return report(bench, file, table=sys.stderr if file is sys.stdout else sys.stdout)


def _opened(name: str, stack: ExitStack) -> TextIO:
    """The file of the report, opened before minutes of measuring."""
    try:
        return sys.stdout if name == "-" else stack.enter_context(Path(name).open("w"))
    except OSError as error:
        raise SettingsError(
            f"--report {name} cannot be written ({error.strerror}); name another file, or - for stdout"
        ) from error


def report(bench: Bench, file: TextIO, table: TextIO) -> int:
    """Print each row when it is known; write all of them as JSON at the end."""
    rows: list[Row] = []
    for checks in ([("host", host.check_host)], sections(bench)):
        for row in run_checks(checks):
            print(lines(row), file=table, flush=True)
            rows.append(row)
        if exit_code(rows):  # without a working host nothing else can be measured
            break
    print(as_json(rows), file=file)
    print("some checks FAILED" if exit_code(rows) else "all checks passed", file=table)
    return exit_code(rows)
