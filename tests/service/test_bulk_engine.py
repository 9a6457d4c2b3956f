"""The engine by itself: in order, beside inference, and never more in memory than a few batches."""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from service.bulk.engine import FILES_PER_JOB, Answer, Fault, answers, in_order, load, read
from service.bulk.files import Found
from service.images import ImageError
from service.models import Model, load_model
from service.session import Session
from service.settings import Settings
from tests.service.artifacts import CLASSIFIER, expected_probabilities
from tests.service.harness import encoded, noise

MAX_PIXELS = 1 << 20


class CountingPool(ThreadPoolExecutor):
    """Knows how many jobs have ended."""

    ended = 0

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future = super().submit(work, *arguments, **named)
        future.add_done_callback(self._count)
        return future

    def _count(self, _: Future[Any]) -> None:
        self.ended += 1


@pytest.fixture
def pool() -> Iterator[CountingPool]:
    with CountingPool(3) as made:
        yield made


@pytest.fixture(scope="module")
def model(models_dir: Path) -> Model:
    return load_model(models_dir / CLASSIFIER / "1", Settings(max_batch=4))


def with_run(model: Model, run: Callable[[NDArray[np.uint8]], NDArray[Any]]) -> Model:
    class Fake:
        provider = model.provider

        def run(self, images: NDArray[np.uint8]) -> NDArray[Any]:
            return run(images)

    return dataclasses.replace(model, session=cast("Session", Fake()))


def write(folder: Path, count: int, bad: frozenset[int] = frozenset()) -> list[Found]:
    for i in range(count):
        content = b"words" if i in bad else encoded(noise(32, 32, seed=i))
        (folder / f"{i:03}.png").write_bytes(content)
    return [Found(str(folder / f"{i:03}.png"), f"{i:03}.png") for i in range(count)]


def test_results_come_in_order_whoever_is_slow(pool: CountingPool) -> None:
    delays = [0.03, 0.0, 0.02, 0.0, 0.01, 0.0] * 4

    def work(i: int) -> int:
        time.sleep(delays[i])
        return i

    assert list(in_order(pool, work, range(24), 5)) == list(range(24))


def test_no_more_is_begun_than_asked(pool: CountingPool) -> None:
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


@pytest.mark.parametrize("count", [0, 1, 4, 5, 37])
def test_each_file_gets_its_own_row(model: Model, pool: CountingPool, tmp_path: Path, count: int) -> None:
    files = write(tmp_path, count)
    found = [item for batch in answers(model, files, MAX_PIXELS, pool) for item in batch]
    assert [item.file for item in found] == files
    for i, item in enumerate(found):
        assert isinstance(item, Answer)
        expected = expected_probabilities(noise(32, 32, seed=i)[None])[0]
        np.testing.assert_allclose(item.row, expected, atol=1e-5)


def test_faults_stay_in_their_place_and_cost_no_place_in_a_batch(
    model: Model, pool: CountingPool, tmp_path: Path
) -> None:
    bad = frozenset({0, 3, 4, 5, 11, 19})
    files = write(tmp_path, 20, bad)
    sizes: list[int] = []

    def run(images: NDArray[np.uint8]) -> NDArray[Any]:
        sizes.append(len(images))
        return model.session.run(images)

    found = [item for batch in answers(with_run(model, run), files, MAX_PIXELS, pool) for item in batch]
    assert [item.file for item in found] == files
    assert {i for i, item in enumerate(found) if isinstance(item, Fault)} == bad
    assert sizes == [4, 4, 4, 2]


def test_nothing_but_bad_files_runs_nothing(model: Model, pool: CountingPool, tmp_path: Path) -> None:
    def run(_: NDArray[np.uint8]) -> NDArray[Any]:
        raise AssertionError("there is nothing to run")

    files = write(tmp_path, 100, frozenset(range(100)))
    batches = list(answers(with_run(model, run), files, MAX_PIXELS, pool))
    assert sum(map(len, batches)) == 100
    assert len(batches) > 1  # they are told as they come, not at the end


def test_the_next_batches_are_decoded_while_one_runs(
    model: Model, pool: CountingPool, tmp_path: Path
) -> None:
    files = write(tmp_path, 96)
    most = 0

    def run(images: NDArray[np.uint8]) -> NDArray[Any]:
        """Returns only when more has been decoded than this batch: for ever, were they to take turns."""
        nonlocal most
        runs.append(len(images))
        end = time.monotonic() + 20
        while len(runs) == 1 and pool.ended * FILES_PER_JOB < 2 * len(images):
            assert time.monotonic() < end, "nothing is decoded during a run"
            time.sleep(0.001)
        most = max(most, pool.ended * FILES_PER_JOB - sum(runs))
        return model.session.run(images)

    runs: list[int] = []
    for _ in answers(with_run(model, run), files, MAX_PIXELS, pool):
        pass
    assert sum(runs) == 96
    assert most <= 2 * model.max_batch + 4 * FILES_PER_JOB  # a few batches ahead, however many files


def test_runs_go_abreast_and_their_results_stay_in_order(
    model: Model, pool: CountingPool, tmp_path: Path
) -> None:
    files = write(tmp_path, 24)
    together = threading.Barrier(3)  # passed only by three runs at once

    def run(images: NDArray[np.uint8]) -> NDArray[Any]:
        together.wait(20)
        return model.session.run(images)

    found = [item for batch in answers(with_run(model, run), files, MAX_PIXELS, pool, 3) for item in batch]
    assert [item.file for item in found] == files


def test_a_file_larger_than_any_image_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ImageError, match="bytes; at most"):
        read(str(path), MAX_PIXELS)


def test_a_folder_named_like_an_image_is_a_fault(model: Model, tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    fault = load(Found(str(tmp_path / "a.png"), "a.png"), model.target, MAX_PIXELS)
    assert isinstance(fault, Fault)
    assert fault.reason == "Is a directory"
