"""The commands `quatserve classify` and `quatserve segment`."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from quatserve.service import command_line
from quatserve.service.artifact import Description, Task, read_description
from quatserve.service.bulk.arguments import classify_parser, segment_parser
from quatserve.service.bulk.files import find_files, with_standard_input
from quatserve.service.bulk.pictures import picture_path, without_clashes, write_picture
from quatserve.service.bulk.pipeline import FileResult, SkippedFile, process
from quatserve.service.bulk.progress import Progress
from quatserve.service.bulk.tables import check_suffix, open_table
from quatserve.service.engine.cpus import usable_cpus
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.predictions import Predictions, top
from quatserve.service.engine.versions import read_repository
from quatserve.service.errors import SettingsError
from quatserve.service.imaging.render import Output
from quatserve.service.settings import Settings

EXIT_SOME_SKIPPED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
Batches = Generator[tuple[int, list[SkippedFile]]]  # per batch: how many are done, and what was skipped


def main(words: Sequence[str]) -> int:
    errors = (*command_line.START_ERRORS, OSError)  # OSError: such as a full disk
    return command_line.run(_run, words, errors)


def _run(words: Sequence[str]) -> int:
    make_parser, command = COMMANDS[words[0]]
    options = make_parser().parse_args(words[1:])
    try:
        return command(options, command_line.settings_from(options))
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return EXIT_INTERRUPTED


# --- the model ---


def find_model(task: Task, name: str | None, settings: Settings) -> Path:
    """The pinned or highest version of the named model, of the default, or of the only one for the task."""
    repository = read_repository(settings.models_dir)
    name = name or repository.default_model(task, settings)
    newest = {
        found: settings.models_dir / found / str(versions[0])
        for found, versions in repository.versions.items()
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
    """The model with one thread per run, and how many runs to make at a time."""
    model = load_model(directory, settings.model_copy(update={"threads": 1}))
    return model, settings.threads or usable_cpus()


# --- the commands ---


def classify(options: argparse.Namespace, settings: Settings) -> int:
    check_suffix(options.out)
    files = find_files(with_standard_input(options.paths, sys.stdin.buffer))
    model, threads = load(find_model(Task.CLASSIFICATION, options.model, settings), settings)
    labels = model.description.labels
    top_k = min(options.top_k, len(labels))

    def finish(result: FileResult) -> tuple[str, Predictions]:
        return result.file.path, top(result.row, labels, top_k)

    identity = f"{model.description.name}/{model.description.version}"
    with closing(open_table(options.out, identity, top_k)) as table:
        waiting = [file for file in files if file.path not in table.done]

        def batches(pool: Executor) -> Batches:
            for batch in process(model, waiting, settings.max_image_pixels, pool, threads, finish):
                rows = [item for item in batch if not isinstance(item, SkippedFile)]
                table.add(rows)
                yield len(rows), [item for item in batch if isinstance(item, SkippedFile)]

        return _work(batches, threads, len(waiting), len(files) - len(waiting))


def segment(options: argparse.Namespace, settings: Settings) -> int:
    output = Output(options.output)
    found = find_files(with_standard_input(options.paths, sys.stdin.buffer), results=options.out)
    files, clashes = without_clashes(found, options.out, output)
    path_of = {file: picture_path(file, options.out, output) for file in files}
    waiting = [file for file in files if not os.path.exists(path_of[file])]  # noqa: PTH110  # Path may raise
    model, threads = load(find_model(Task.SEGMENTATION, options.model, settings), settings)
    options.out.mkdir(parents=True, exist_ok=True)

    def finish(result: FileResult) -> SkippedFile | None:
        return write_picture(
            result, path_of[result.file], output, options.threshold, settings.max_image_pixels
        )

    def batches(pool: Executor) -> Batches:
        for batch in process(model, waiting, settings.max_image_pixels, pool, threads, finish):
            skipped = [item for item in batch if item]
            yield len(batch) - len(skipped), skipped

    return _work(batches, threads, len(waiting), len(files) - len(waiting), clashes)


def _work(
    batches: Callable[[Executor], Batches],
    threads: int,
    waiting: int,
    before: int,
    skipped: Sequence[SkippedFile] = (),
) -> int:
    """Process the files with a progress bar, and print a summary."""
    with (
        ThreadPoolExecutor(threads, thread_name_prefix="files") as pool,
        Progress(waiting + len(skipped)) as progress,
        closing(batches(pool)) as results,
    ):
        progress.count(0, skipped)
        for done, skipped_now in results:
            progress.count(done, skipped_now)
    print(progress.summary(before), file=sys.stderr)
    return EXIT_SOME_SKIPPED if progress.skipped else 0


COMMANDS: dict[str, tuple[Callable[[], argparse.ArgumentParser], Callable[..., int]]] = {
    "classify": (classify_parser, classify),
    "segment": (segment_parser, segment),
}
