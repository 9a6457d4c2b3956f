"""Probes, refusals, copies and models at once: what passes, and what each check would catch."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quatserve.service.check import correct
from quatserve.service.check.bench import Bench
from quatserve.service.check.report import Row, Verdict, run_checks
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.session import CPU, CUDA
from quatserve.service.settings import Settings
from tests.service.engine.cuda.cuda_on_cpu import NO_MEMORY, CudaOnCpu


def rows(check: Callable[[Bench], Iterable[Row]], bench: Bench) -> list[Row]:
    return list(run_checks([("the check", partial(check, bench))]))


def verdicts(found: list[Row]) -> dict[str, str]:
    return {row.name: row.verdict.value for row in found}


def test_the_probe_of_every_graph_is_shown_at_every_size(bench: Bench) -> None:
    found = rows(correct.check_probes, bench)
    assert verdicts(found) == {
        f"probe, {graph}": "ok" for graph in ("colours fp32", "colours fp16", "road fp32", "road fp16")
    }
    assert list(found[0].values["differences"]) == ["1", "4", "8", "32"]


def test_a_size_that_is_left_out_fails_the_probe(bench: Bench, gpu: type[CudaOnCpu]) -> None:
    gpu.failures[32] = NO_MEMORY
    assert {row.verdict for row in rows(correct.check_probes, bench)} == {Verdict.FAILED}


def test_a_model_that_took_the_cpu_fails_the_probe(bench: Bench) -> None:
    def load_elsewhere(directory: Path, settings: Settings) -> Model:
        model = load_model(directory, settings)
        object.__setattr__(model.session, "provider", CPU)
        return model

    assert rows(correct.check_probes, replace(bench, load=load_elsewhere))[0].verdict is Verdict.FAILED


def test_a_probe_that_disagrees_is_a_failed_row(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = CudaOnCpu.run

    def off(self: CudaOnCpu, *arguments: Any) -> list[Any]:
        return [rows + np.ones(1, rows.dtype) for rows in real(self, *arguments)]

    monkeypatch.setattr(CudaOnCpu, "run", off)
    (row,) = rows(correct.check_probes, bench)
    assert (row.name, row.verdict) == ("the check", Verdict.FAILED)
    assert "probe: output differs by 1" in row.found


def test_int8_must_be_refused_for_its_reason(bench: Bench) -> None:
    (row,) = rows(correct.check_int8, bench)
    assert (row.name, row.verdict) == ("INT8 is refused, colours", Verdict.OK)
    loads = replace(bench, load=lambda directory, _: load_model(directory, Settings(threads=1)))
    (row,) = rows(correct.check_int8, loads)
    assert (row.verdict, row.found) == (Verdict.FAILED, "it was loaded")


def test_a_tiny_memory_limit_must_be_refused_for_its_reason(bench: Bench, gpu: type[CudaOnCpu]) -> None:
    (row,) = rows(correct.check_memory_limit, bench)  # the stand-in has no arena
    assert (row.verdict, row.found) == (Verdict.FAILED, "it was loaded")
    gpu.failures[1] = "CUDA failure 719: unspecified launch failure ;"
    assert rows(correct.check_memory_limit, bench)[0].verdict is Verdict.FAILED
    gpu.failures[1] = "Available memory of 768 is smaller than requested bytes of 32768"
    (row,) = rows(correct.check_memory_limit, bench)
    assert row.verdict is Verdict.OK
    limits = [dict(session.providers[0][1])["gpu_mem_limit"] for session in gpu.opened]
    assert set(limits) == {str(correct.TINY_ARENA_BYTES)}


def test_a_real_profile_shows_where_operators_ran(bench: Bench) -> None:
    found = rows(correct.check_copies, bench)  # the stand-in runs them on the CPU, and the profile says so
    assert len(found) == 4
    assert {row.verdict for row in found} == {Verdict.FAILED}
    assert f"{{'{CPU}': " in found[0].found


@pytest.mark.parametrize(
    ("kernels", "verdict"),
    [
        ([("Conv", CUDA), ("Relu", CUDA)], Verdict.OK),
        ([("Conv", CUDA), ("Relu", CPU)], Verdict.FAILED),
        ([("Conv", CUDA), ("MemcpyToHost", CUDA), ("Relu", CUDA)], Verdict.FAILED),
        ([], Verdict.FAILED),
    ],
)
def test_copies_and_foreign_operators_are_found(kernels: list[tuple[str, str]], verdict: Verdict) -> None:
    assert correct.judge_kernels("no copies", kernels).verdict is verdict


def test_models_that_disturb_each_other_are_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correct, "ROUNDS_TOGETHER", 3)
    (row,) = rows(correct.check_together, bench)
    assert (row.verdict, row.found) == (Verdict.OK, "2 models, 3 probes each: all agree")

    def load_disturbed(directory: Path, settings: Settings) -> Model:
        def probe(_run: object) -> float:
            raise ValueError("output differs")

        return replace(load_model(directory, settings), probe=probe)

    (row,) = rows(correct.check_together, replace(bench, load=load_disturbed))
    assert row.verdict is Verdict.FAILED
    assert "colours: output differs" in row.found
    assert "road: output differs" in row.found
