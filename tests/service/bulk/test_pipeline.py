"""Files are processed in order, on all threads, with only a few batches in memory."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from quatserve.service.bulk.files import InputFile
from quatserve.service.bulk.pipeline import FileResult, SkippedFile, map_in_order, prepare_file, process, read
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.session import CUDA, Session
from quatserve.service.errors import BadOutputError, ImageError
from quatserve.service.imaging.images import Target
from quatserve.service.settings import Settings
from tests.service.artifacts import CLASSIFIER, expected_probabilities
from tests.service.harness import encoded, noise

MAX_PIXELS = 1 << 20
THREADS = 3


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as made:
        yield made


@pytest.fixture(scope="module")
def model(models_dir: Path) -> Model:
    return load_model(models_dir / CLASSIFIER / "1", Settings(max_batch=4))


def with_run(
    model: Model, run: Callable[[NDArray[np.uint8]], NDArray[Any]], provider: str | None = None
) -> Model:
    class Fake:
        provider: str

        def run(self, images: NDArray[np.uint8]) -> NDArray[Any]:
            return run(images)

    fake = Fake()
    fake.provider = provider or model.provider
    return dataclasses.replace(model, session=cast("Session", fake))


def processed(
    model: Model,
    files: list[InputFile],
    pool: ThreadPoolExecutor,
    finish: Callable[[FileResult], Any] = lambda a: a,
) -> list[Any]:
    batches = process(model, files, MAX_PIXELS, pool, THREADS, finish)
    return [item for batch in batches for item in batch]


def write(folder: Path, count: int, bad: frozenset[int] = frozenset()) -> list[InputFile]:
    for i in range(count):
        content = b"words" if i in bad else encoded(noise(32, 32, seed=i))
        (folder / f"{i:03}.png").write_bytes(content)
    return [InputFile(str(folder / f"{i:03}.png"), f"{i:03}.png") for i in range(count)]


def test_results_come_in_order_of_the_items(pool: ThreadPoolExecutor) -> None:
    delays = [0.03, 0.0, 0.02, 0.0, 0.01, 0.0] * 4

    def work(i: int) -> int:
        time.sleep(delays[i])
        return i

    assert list(map_in_order(pool, work, range(24), 5)) == list(range(24))


def test_only_so_many_items_are_submitted_ahead(pool: ThreadPoolExecutor) -> None:
    submitted = 0

    def items() -> Iterator[int]:
        nonlocal submitted
        while submitted < 1000:
            submitted += 1
            yield submitted

    for consumed, _ in enumerate(map_in_order(pool, lambda item: item, items(), 7), 1):
        assert submitted - consumed <= 7
    assert submitted == 1000


def test_closing_early_cancels_waiting_items() -> None:
    gate, ran = threading.Event(), list[int]()

    def work(i: int) -> None:
        ran.append(i)
        gate.wait(10 if i else 0)

    with ThreadPoolExecutor(1) as pool:
        results = cast("Iterator[None]", map_in_order(pool, work, range(50), 10))
        next(results)
        results.close()  # type: ignore[attr-defined]
        gate.set()
    assert len(ran) <= 2  # the one consumed, and the one running


@pytest.mark.parametrize("where", ["load", "finish"])
def test_closing_early_stops_the_running_batch(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    files, seen = write(tmp_path, 12), list[InputFile]()
    under_way, gate = threading.Event(), threading.Event()

    def note(file: InputFile) -> None:
        seen.append(file)
        if file == files[5]:  # the second of the second batch
            under_way.set()
            gate.wait(10)

    def noted_load(file: InputFile, *arguments: Any) -> Any:
        if where == "load":
            note(file)
        return prepare_file(file, *arguments)

    def finish(answer: FileResult) -> None:
        if where == "finish":
            note(answer.file)

    monkeypatch.setattr("quatserve.service.bulk.pipeline.prepare_file", noted_load)
    with ThreadPoolExecutor(1) as pool:
        batches = process(model, files, MAX_PIXELS, pool, 1, finish)
        next(batches)
        assert under_way.wait(10)
        batches.close()  # type: ignore[attr-defined]
        gate.set()
    assert seen == files[:6]


@pytest.mark.parametrize("count", [0, 1, 4, 5, 37])
def test_each_file_gets_its_own_row(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path, count: int
) -> None:
    files = write(tmp_path, count)
    found = processed(model, files, pool)
    assert [item.file for item in found] == files
    for i, item in enumerate(found):
        assert isinstance(item, FileResult)
        expected = expected_probabilities(noise(32, 32, seed=i)[None])[0]
        np.testing.assert_allclose(item.row, expected, atol=1e-5)


def test_skipped_files_keep_their_place(model: Model, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    bad = frozenset({0, 3, 4, 5, 6, 7, 11, 19})
    files = write(tmp_path, 20, bad)
    found = processed(model, files, pool)
    assert [item.file for item in found] == files
    assert {i for i, item in enumerate(found) if isinstance(item, SkippedFile)} == bad


def test_finish_may_skip_a_file(model: Model, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    files = write(tmp_path, 6)

    def finish(answer: FileResult) -> str | SkippedFile:
        return SkippedFile(answer.file, "no") if answer.file == files[4] else answer.file.relative

    assert processed(model, files, pool, finish) == [
        "000.png", "001.png", "002.png", "003.png", SkippedFile(files[4], "no"), "005.png"
    ]  # fmt: skip


def test_a_failing_run_skips_only_the_file_that_fails_alone(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    files = write(tmp_path, 6)
    poison = noise(32, 32, seed=4)

    def run(images: NDArray[np.uint8]) -> NDArray[Any]:
        if any((image == poison).all() for image in images):
            raise BadOutputError("output holds numbers that are not finite\nand more")
        return model.session.run(images)

    found = processed(with_run(model, run), files, pool)
    assert [item.file for item in found] == files
    skipped = [item for item in found if isinstance(item, SkippedFile)]
    assert skipped == [SkippedFile(files[4], "the network failed: output holds numbers that are not finite")]


def test_the_network_does_not_run_without_readable_files(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    def run(_: NDArray[np.uint8]) -> NDArray[Any]:
        raise AssertionError("there is nothing to run")

    files = write(tmp_path, 100, frozenset(range(100)))
    batches = list(process(with_run(model, run), files, MAX_PIXELS, pool, THREADS, lambda a: a))
    assert sum(map(len, batches)) == 100
    assert len(batches) > 1  # they are reported as they come, not at the end


def test_a_few_files_are_spread_over_all_threads(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Each thread runs its own batch at the same time: fewer threads would not pass the barrier."""
    together = threading.Barrier(THREADS)

    def run(images: NDArray[np.uint8]) -> NDArray[Any]:
        together.wait(20)
        return model.session.run(images)

    files = write(tmp_path, THREADS)
    assert [item.file for item in processed(with_run(model, run), files, pool)] == files


def test_a_gpu_runs_one_batch_at_a_time_while_others_decode(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, running, most = 0, 0, 0

    def count_loads(*arguments: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return prepare_file(*arguments)

    def run(images: NDArray[np.uint8]) -> NDArray[Any]:
        """Return only when the next batch has been decoded too: never, if running and decoding took turns."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        end = time.monotonic() + 20
        while decoded < 2 * model.max_batch:
            assert time.monotonic() < end, "nothing is decoded during a run"
            time.sleep(0.001)
        running -= 1
        return model.session.run(images)

    monkeypatch.setattr("quatserve.service.bulk.pipeline.prepare_file", count_loads)
    files = write(tmp_path, 48)
    assert [item.file for item in processed(with_run(model, run, CUDA), files, pool)] == files
    assert most == 1


def test_finished_batches_that_nobody_takes_are_bounded(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    files, finished = write(tmp_path, 96), list[InputFile]()
    batches = process(model, files, MAX_PIXELS, pool, THREADS, lambda a: finished.append(a.file))
    next(batches)
    time.sleep(0.3)  # enough for all of them, were there no bound
    assert len(finished) <= (1 + 2 * THREADS) * model.max_batch


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ImageError, match="bytes; the limit is"):
        read(str(path), MAX_PIXELS)


def test_a_folder_named_like_an_image_is_skipped(model: Model, tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    skipped = prepare_file(
        InputFile(str(tmp_path / "a.png"), "a.png"), Target.of(model.description), MAX_PIXELS
    )
    assert isinstance(skipped, SkippedFile)
    assert skipped.reason == "Is a directory"


def test_a_name_with_a_zero_byte_is_skipped(model: Model) -> None:
    file = InputFile("a\0b.png", "a\0b.png")
    assert prepare_file(file, Target.of(model.description), MAX_PIXELS) == SkippedFile(
        file, "embedded null byte"
    )
