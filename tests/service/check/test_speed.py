"""The checks of speed and of memory, on models whose runs take the time that they are told."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from quatserve.service.artifact import Precision
from quatserve.service.check import lasting, speed
from quatserve.service.check.bench import Bench
from quatserve.service.check.report import Verdict, run_checks
from tests.service.check.conftest import TimedModels

Cost = Callable[[int, int], float]
FP32, FP16 = Precision.FP32, Precision.FP16
MEBIBYTE = 1 << 20


def steady(size: int, _before: int) -> float:
    return 0.001 * size


def rebuilding(size: int, before: int) -> float:
    """A single session: a batch size other than the last costs plans."""
    return 0.001 * size + (0.03 if size != before else 0)


def halved(size: int, _before: int) -> float:
    return 0.0005 * size


@pytest.mark.parametrize(("cost", "verdict"), [(steady, Verdict.OK), (rebuilding, Verdict.FAILED)])
def test_rebuilding_plans_at_each_change_of_the_batch_size_is_found(
    models: Path, cost: Cost, verdict: Verdict
) -> None:
    found = list(speed.check_alternating(TimedModels({FP32: cost, FP16: cost}).bench(models)))
    assert len(found) == 4
    assert {row.verdict for row in found} == {verdict}
    assert found[0].values["ratios"]["1"] == pytest.approx(1 if cost is steady else 31)


@pytest.mark.parametrize(("fp16", "verdict"), [(halved, Verdict.OK), (steady, Verdict.FAILED)])
def test_fp16_that_is_no_quicker_has_lost_its_tensor_cores(
    models: Path, fp16: Cost, verdict: Verdict
) -> None:
    (row,) = speed.check_fp16(TimedModels({FP32: steady, FP16: fp16}).bench(models))
    assert (row.name, row.verdict) == ("fp16 against fp32, road", verdict)


def test_each_default_option_is_measured_against_its_contrary(bench: Bench) -> None:
    """On the stand-in for CUDA: the sessions are real, and their options are those of the row."""
    found = list(speed.check_options(bench))
    assert [row.name for row in found] == [
        f"options, {graph}" for graph in ("colours fp32", "colours fp16", "road fp32", "road fp16")
    ]
    assert list(found[0].values) == ["default", "use_tf32=1", "prefer_nhwc=1"]
    assert list(found[1].values) == ["default", "prefer_nhwc=0", "fuse_conv_bias=0", "both 0"]
    assert {row.verdict for row in found} == {Verdict.MEASURED}


def test_graphs_are_measured_and_their_probe_decides(models: Path) -> None:
    timed = TimedModels({FP32: steady, FP16: steady})
    found = list(speed.check_cuda_graphs(timed.bench(models)))
    assert {row.verdict for row in found} == {Verdict.OK}
    assert found[0].values["ratios"] == {"1": pytest.approx(1), "32": pytest.approx(1)}

    def disagree() -> None:
        raise ValueError("probe: output differs")

    timed.prepare = disagree
    (row,) = run_checks([("CUDA graphs", partial(speed.check_cuda_graphs, timed.bench(models)))])
    assert (row.verdict, row.found) == (Verdict.FAILED, "ValueError: probe: output differs")


@pytest.mark.parametrize(
    ("lost_per_swap", "verdict"), [(0, Verdict.OK), (MEBIBYTE // 2, Verdict.OK), (MEBIBYTE, Verdict.FAILED)]
)
def test_memory_that_swaps_do_not_give_back_is_found(
    models: Path, lost_per_swap: int, verdict: Verdict
) -> None:
    timed, loads = TimedModels({FP32: steady, FP16: steady}), list[Path]()
    bench = timed.bench(models)

    def load(directory: Path, settings: object) -> object:
        loads.append(directory)
        return timed.load(directory, settings)  # type: ignore[arg-type]

    def memory() -> tuple[int, int]:
        return (1 << 34) - len(loads) * lost_per_swap, 1 << 34

    counted = Bench(settings=bench.settings, load=load, clock=bench.clock)  # type: ignore[arg-type]
    (row,) = lasting.check_swaps(counted, memory)
    assert (len(loads), row.verdict) == (lasting.SWAPS + 1, verdict)
