"""`quatserve check-gpu`: its exit codes, its table and its report."""

import io
import json
from pathlib import Path

import pytest

from quatserve import check_gpu
from quatserve.__main__ import main
from quatserve.service.check import host
from quatserve.service.check.bench import Bench
from quatserve.service.check.report import Row, Verdict, judged, lines, measured, run_checks
from quatserve.service.engine.cuda.driver import Gpu
from quatserve.service.errors import DeviceUnavailableError, NoGpuError
from quatserve.service.settings import Settings

ROOT = Path(__file__).parents[2]
BENCH = Bench(settings=Settings(models_dir=ROOT / "models"))


def run(monkeypatch: pytest.MonkeyPatch, error: Exception | None, *words: str) -> int:
    """The command on a machine whose driver answers so."""

    def find_gpu() -> Gpu:
        if error:
            raise error
        return Gpu("none", (9, 0), (13, 0))

    monkeypatch.setattr(check_gpu, "find_gpu", find_gpu)
    monkeypatch.setattr(host, "require_cuda", find_gpu)
    return main(["check-gpu", "--models-dir", str(ROOT / "models"), *words])


def test_where_there_is_no_gpu_it_says_so_and_ends_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    assert run(monkeypatch, NoGpuError("the driver shows no GPU"), "--report", str(report)) == 3
    assert capsys.readouterr().err == "nothing to check: the driver shows no GPU\n"
    assert not report.exists()


def test_a_gpu_that_cannot_be_used_is_a_failed_row_and_nothing_else_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    old = DeviceUnavailableError("the NVIDIA driver is too old for CUDA 13")
    assert run(monkeypatch, old, "--report", str(report)) == 1
    (row,) = json.loads(report.read_text())["rows"]
    assert (row["name"], row["verdict"]) == ("host", "FAILED")
    assert "DeviceUnavailableError: the NVIDIA driver is too old for CUDA 13" in row["found"]
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--models-dir", "nowhere"], "models directory nowhere"),
        (["--max-batch", "0"], "max_batch is '0'"),
        (["--report", "/nowhere/report.json"], "name another file, or - for stdout"),
    ],
)
def test_a_bad_word_is_one_line_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], fault: str
) -> None:
    monkeypatch.setattr(check_gpu, "report", lambda *_, **__: pytest.fail("it measured"))
    assert run(monkeypatch, None, *words) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert fault in line


def report_of(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, list[str]]:
    monkeypatch.setattr(host, "check_host", list)
    monkeypatch.setattr(check_gpu, "sections", lambda _: [("all", lambda: rows)])
    file, table = io.StringIO(), io.StringIO()
    code = check_gpu.report(BENCH, file, table)
    return code, table.getvalue(), [row["verdict"] for row in json.loads(file.getvalue())["rows"]]


def test_one_failed_row_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    good = [judged("probe", True, "0.1", difference=0.1), measured("GPU memory", "8 GiB")]
    assert report_of(good, monkeypatch)[0] == 0
    code, table, verdicts = report_of([*good, judged("copies", False, "2")], monkeypatch)
    assert (code, verdicts) == (1, ["ok", "-", "FAILED"])
    assert table.splitlines()[-1] == "some checks FAILED"


def test_a_check_that_raises_is_a_row_and_the_next_goes_on() -> None:
    def broken() -> list[Row]:
        raise RuntimeError("lost")

    found = list(run_checks([("broken", broken), ("good", lambda: [judged("good", True, "")])]))
    assert [(row.name, row.verdict) for row in found] == [("broken", Verdict.FAILED), ("good", Verdict.OK)]
    assert found[0].found == "RuntimeError: lost"


def test_a_long_row_goes_on_below() -> None:
    first, second = lines(judged("probe", True, "word " * 30)).splitlines()
    assert first.startswith("probe   ")
    assert "ok" in first
    assert second.startswith(" " * 48 + "word")


def test_every_section_is_listed_and_each_check_is_there() -> None:
    assert [name for name, _ in check_gpu.sections(BENCH)] == [
        "probes", "INT8", "memory limit", "copies", "all models at once", "alternating sizes", "fp16",
        "options", "CUDA graphs", "swaps", "service",
    ]  # fmt: skip
