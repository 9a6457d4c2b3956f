"""The engine by itself: in order, on all its threads, and never more in memory than a few batches."""

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

from quatserve.service.bulk.engine import Answer, Fault, in_order, load, outcomes, read
from quatserve.service.bulk.files import Found
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


def found_in(
    model: Model, files: list[Found], pool: ThreadPoolExecutor, finish: Callable[[Answer], Any] = lambda a: a
) -> list[Any]:
    batches = outcomes(model, files, MAX_PIXELS, pool, THREADS, finish)
    return [item for batch in batches for item in batch]


def write(folder: Path, count: int, bad: frozenset[int] = frozenset()) -> list[Found]:
    for i in range(count):
        content = b"words" if i in bad else encoded(noise(32, 32, seed=i))
        (folder / f"{i:03}.png").write_bytes(content)
    return [Found(str(folder / f"{i:03}.png"), f"{i:03}.png") for i in range(count)]


def test_results_come_in_order_whoever_is_slow(pool: ThreadPoolExecutor) -> None:
    delays = [0.03, 0.0, 0.02, 0.0, 0.01, 0.0] * 4

    def work(i: int) -> int:
        time.sleep(delays[i])
        return i

    assert list(in_order(pool, work, range(24), 5)) == list(range(24))


def test_no_more_is_begun_than_asked(pool: ThreadPoolExecutor) -> None:
    begun = 0

    def items() -> Iterator[int]:
        nonlocal begun
        while begun < 1000:
            begun += 1
            yield begun

    for consumed, _ in enumerate(in_order(pool, lambda item: item, items(), 7), 1):
        assert begun - consumed <= 7
    assert begun == 1000


def test_leaving_early_cancels_what_has_not_begun() -> None:
    gate, ran = threading.Event(), list[int]()

    def work(i: int) -> None:
        ran.append(i)
        gate.wait(10 if i else 0)

    with ThreadPoolExecutor(1) as pool:
        results = cast("Iterator[None]", in_order(pool, work, range(50), 10))
        next(results)
        results.close()  # type: ignore[attr-defined]
        gate.set()
    assert len(ran) <= 2  # the one asked for, and the one under way


@pytest.mark.parametrize("where", ["load", "finish"])
def test_leaving_early_stops_a_batch_under_way(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    files, seen = write(tmp_path, 12), list[Found]()
    under_way, gate = threading.Event(), threading.Event()

    def note(file: Found) -> None:
        seen.append(file)
        if file == files[5]:  # the second of the second batch
            under_way.set()
            gate.wait(10)

    def noted_load(file: Found, *arguments: Any) -> Any:
        if where == "load":
            note(file)
        return load(file, *arguments)

    def finish(answer: Answer) -> None:
        if where == "finish":
            note(answer.file)

    monkeypatch.setattr("quatserve.service.bulk.engine.load", noted_load)
    with ThreadPoolExecutor(1) as pool:
        batches = outcomes(model, files, MAX_PIXELS, pool, 1, finish)
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
    found = found_in(model, files, pool)
    assert [item.file for item in found] == files
    for i, item in enumerate(found):
        assert isinstance(item, Answer)
        expected = expected_probabilities(noise(32, 32, seed=i)[None])[0]
        np.testing.assert_allclose(item.row, expected, atol=1e-5)


def test_faults_stay_in_their_place(model: Model, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    bad = frozenset({0, 3, 4, 5, 6, 7, 11, 19})
    files = write(tmp_path, 20, bad)
    found = found_in(model, files, pool)
    assert [item.file for item in found] == files
    assert {i for i, item in enumerate(found) if isinstance(item, Fault)} == bad


def test_an_answer_that_cannot_be_finished_is_a_fault(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    files = write(tmp_path, 6)

    def finish(answer: Answer) -> str | Fault:
        return Fault(answer.file, "no") if answer.file == files[4] else answer.file.relative

    assert found_in(model, files, pool, finish) == [
        "000.png", "001.png", "002.png", "003.png", Fault(files[4], "no"), "005.png"
    ]  # fmt: skip


def test_a_run_that_fails_is_the_fault_of_its_file_alone(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    files = write(tmp_path, 6)
    poison = noise(32, 32, seed=4)

    def run(images: NDArray[np.uint8]) -> NDArray[Any]:
        if any((image == poison).all() for image in images):
            raise BadOutputError("output holds numbers that are not finite\nand more")
        return model.session.run(images)

    found = found_in(with_run(model, run), files, pool)
    assert [item.file for item in found] == files
    faults = [item for item in found if isinstance(item, Fault)]
    assert faults == [Fault(files[4], "the network failed: output holds numbers that are not finite")]


def test_nothing_but_bad_files_runs_nothing(model: Model, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    def run(_: NDArray[np.uint8]) -> NDArray[Any]:
        raise AssertionError("there is nothing to run")

    files = write(tmp_path, 100, frozenset(range(100)))
    batches = list(outcomes(with_run(model, run), files, MAX_PIXELS, pool, THREADS, lambda a: a))
    assert sum(map(len, batches)) == 100
    assert len(batches) > 1  # they are told as they come, not at the end


def test_few_files_are_shared_by_all_threads(model: Model, pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """Each thread runs its own batch, all at once: fewer could not pass the barrier."""
    together = threading.Barrier(THREADS)

    def run(images: NDArray[np.uint8]) -> NDArray[Any]:
        together.wait(20)
        return model.session.run(images)

    files = write(tmp_path, THREADS)
    assert [item.file for item in found_in(with_run(model, run), files, pool)] == files


def test_a_gpu_makes_one_run_at_a_time_while_others_decode(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, running, most = 0, 0, 0

    def count_loads(*arguments: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return load(*arguments)

    def run(images: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns only when more has been decoded than this batch: for ever, were they to take turns."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        end = time.monotonic() + 20
        while decoded < 2 * model.max_batch:
            assert time.monotonic() < end, "nothing is decoded during a run"
            time.sleep(0.001)
        running -= 1
        return model.session.run(images)

    monkeypatch.setattr("quatserve.service.bulk.engine.load", count_loads)
    files = write(tmp_path, 48)
    assert [item.file for item in found_in(with_run(model, run, CUDA), files, pool)] == files
    assert most == 1


def test_only_a_few_batches_wait_however_many_files_there_are(
    model: Model, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    files, finished = write(tmp_path, 96), list[Found]()
    batches = outcomes(model, files, MAX_PIXELS, pool, THREADS, lambda a: finished.append(a.file))
    next(batches)
    time.sleep(0.3)  # as long as they like: nobody takes the results
    assert len(finished) <= (1 + 2 * THREADS) * model.max_batch


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ImageError, match="bytes; at most"):
        read(str(path), MAX_PIXELS)


def test_a_folder_named_like_an_image_is_a_fault(model: Model, tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    fault = load(Found(str(tmp_path / "a.png"), "a.png"), Target.of(model.description), MAX_PIXELS)
    assert isinstance(fault, Fault)
    assert fault.reason == "Is a directory"


def test_a_name_with_a_zero_byte_is_a_fault(model: Model) -> None:
    file = Found("a\0b.png", "a\0b.png")
    assert load(file, Target.of(model.description), MAX_PIXELS) == Fault(file, "embedded null byte")
