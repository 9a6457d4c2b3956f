"""`quatserve classify` and `quatserve segment`, from arguments to an exit code."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from quatserve.service.artifact import Description, Task, read_description
from quatserve.service.bulk import tables
from quatserve.service.bulk.engine import Answer, Fault, outcomes
from quatserve.service.bulk.files import Found, gather, named
from quatserve.service.bulk.pictures import draw, picture_path, without_clashes
from quatserve.service.engine.cpus import usable_cpus
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.versions import versions_on_disk
from quatserve.service.errors import SettingsError
from quatserve.service.imaging.images import Output
from quatserve.service.settings import CommandParser, Settings, add_flags, build, from_environment
from quatserve.service.web.inference import top
from quatserve.service.web.queries import SegmentQuery

SHARED_SETTINGS = (
    "models_dir",
    "device",
    "precision",
    "threads",
    "max_batch",
    "max_batch_s",
    "max_image_pixels",
    "gpu_memory_bytes",
)
EXIT_SOME_BAD = 1
EPILOG = "A second run goes on where the first stopped. Bad files are told, skipped, and end in exit code 1."


@dataclass
class Tally:
    """How it is going, for the person at the terminal."""

    bar: "tqdm[Any]"
    begun: float = field(default_factory=time.perf_counter)
    done: int = 0
    bad: int = 0

    def count(self, answered: int, faults: Iterable[Fault]) -> None:
        for fault in faults:
            self.bad += 1
            self.bar.write(f"{fault.file.path}: {fault.reason}", file=sys.stderr)
            self.bar.update()
        self.done += answered
        self.bar.update(answered)

    def summary(self, before: int) -> str:
        rate = self.done / (time.perf_counter() - self.begun)
        parts = [f"{self.done} done" + (f" at {rate:,.0f} images/s" if self.done else "")]
        parts += [f"{before} done before"] if before else []
        parts += [f"{self.bad} bad"] if self.bad else []
        return ", ".join(parts)


# --- choosing the model ---


def find_model(task: Task, name: str | None, settings: Settings) -> Path:
    """The artifact of that name, the default, or the only one that does the task: its highest version."""
    name = name or settings.default_model(task)
    on_disk = versions_on_disk(settings.models_dir)
    newest = {
        found: settings.models_dir / found / str(versions[0])
        for found, versions in on_disk.items()
        if versions
    }
    if name:
        if name not in newest:
            raise SettingsError(f"model is {name!r}: there are {', '.join(sorted(newest)) or 'none'}")
        _check_task(read_description(newest[name]), task)
        return newest[name]
    able = [found for found in sorted(newest) if read_description(newest[found]).task is task]
    if len(able) != 1:
        raise SettingsError(
            f"{len(able)} models do {task}; name one with --model ({', '.join(able) or 'none'})"
        )
    return newest[able[0]]


def _check_task(description: Description, task: Task) -> None:
    if description.task is not task:
        raise SettingsError(f"model is {description.name!r}: it does {description.task}, not {task}")


def load(directory: Path, settings: Settings) -> tuple[Model, int]:
    """The model, and how many threads work with it: on a CPU each runs it by itself."""
    model = load_model(directory, settings.model_copy(update={"threads": 1}))
    return model, settings.threads or usable_cpus()


# --- the two commands ---


def classify(options: argparse.Namespace, settings: Settings) -> int:
    tables.check_suffix(options.out)
    files = gather(named(options.paths, sys.stdin.buffer))
    model, threads = load(find_model(Task.CLASSIFICATION, options.model, settings), settings)
    labels = model.description.labels
    top_k = min(options.top_k, len(labels))

    def finish(answer: Answer) -> tuple[str, tables.Predictions]:
        return answer.file.path, top(answer.row, labels, top_k)

    with closing(tables.open_table(options.out, _identity(model), top_k)) as table:
        waiting = [file for file in files if file.path not in table.done]

        def steps(pool: Executor) -> Iterator[tuple[int, list[Fault]]]:
            for batch in outcomes(model, waiting, settings.max_image_pixels, pool, threads, finish):
                found = [item for item in batch if not isinstance(item, Fault)]
                table.add(found)
                yield len(found), [item for item in batch if isinstance(item, Fault)]

        return _work(steps, threads, waiting, len(files) - len(waiting), [])


def segment(options: argparse.Namespace, settings: Settings) -> int:
    query = SegmentQuery(options.model, Output(options.output), options.threshold)
    gathered = gather(named(options.paths, sys.stdin.buffer), leave_out=options.out)
    files, faults = without_clashes(gathered, options.out, query.output)
    path_of = {file: picture_path(file, options.out, query.output) for file in files}
    waiting = [file for file in files if not os.path.exists(path_of[file])]  # noqa: PTH110  # Path may raise
    model, threads = load(find_model(Task.SEGMENTATION, options.model, settings), settings)
    options.out.mkdir(parents=True, exist_ok=True)

    def finish(answer: Answer) -> Fault | None:
        return draw(answer, path_of[answer.file], query, settings.max_image_pixels)

    def steps(pool: Executor) -> Iterator[tuple[int, list[Fault]]]:
        for batch in outcomes(model, waiting, settings.max_image_pixels, pool, threads, finish):
            bad = [fault for fault in batch if fault]
            yield len(batch) - len(bad), bad

    return _work(steps, threads, waiting, len(files) - len(waiting), faults)


Steps = Callable[[Executor], Iterator[tuple[int, list[Fault]]]]


def _work(steps: Steps, threads: int, waiting: list[Found], before: int, faults: list[Fault]) -> int:
    """Go through the files with a progress bar, and sum up."""
    bar: tqdm[Any] = tqdm(total=len(waiting) + len(faults), unit=" images", disable=None, dynamic_ncols=True)
    tally = Tally(bar)
    with ThreadPoolExecutor(threads, thread_name_prefix="files") as pool, bar:
        tally.count(0, faults)
        with closing(steps(pool)) as progress:  # type: ignore[type-var]
            for answered, bad in progress:
                tally.count(answered, bad)
    print(tally.summary(before), file=sys.stderr)
    return EXIT_SOME_BAD if tally.bad else 0


def _identity(model: Model) -> str:
    return f"{model.description.name}/{model.description.version}"


# --- arguments ---


def _threshold(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _parser(command: str, what: str) -> argparse.ArgumentParser:
    parser = CommandParser(prog=f"quatserve serve {command}", description=what, epilog=EPILOG)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="image, folder, or - for a list on stdin")
    parser.add_argument("--model", help="name of the model, where several could do it")
    parser.add_argument("--debug", action="store_true", help="show a traceback when it cannot start")
    add_flags(parser, SHARED_SETTINGS)
    return parser


def classify_parser() -> argparse.ArgumentParser:
    parser = _parser("classify", "Say what is in each image, in a table that grows.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="results.csv or results.jsonl; appended to"
    )
    parser.add_argument("--top-k", type=_count, default=1, metavar="N", help="classes an image (default: 1)")
    return parser


def segment_parser() -> argparse.ArgumentParser:
    parser = _parser("segment", "Write a picture of the road in each image.")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for NAME-mask.png and the like"
    )
    parser.add_argument("--output", choices=list(Output), default=Output.MASK, help="default: mask")
    parser.add_argument(
        "--threshold", type=_threshold, default=0.5, metavar="P", help="road from here on (default: 0.5)"
    )
    return parser


COMMANDS: dict[str, tuple[Callable[[], argparse.ArgumentParser], Callable[..., int]]] = {
    "classify": (classify_parser, classify),
    "segment": (segment_parser, segment),
}


def run(command: str, arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    make_parser, work = COMMANDS[command]
    options = make_parser().parse_args(arguments)
    flags = {name: getattr(options, name) for name in SHARED_SETTINGS if hasattr(options, name)}
    return work(options, build(from_environment(environment) | flags))
