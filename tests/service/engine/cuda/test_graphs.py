"""CUDA graphs: fixed buffers, captured on the thread that replays; here on the CPU, without a graph."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from quatserve.service.engine.cuda.graphs import NO_CAPTURE
from quatserve.service.engine.load import load_model
from quatserve.service.errors import ArtifactError
from quatserve.service.settings import Device, Settings
from tests.service.artifacts import expected_probabilities, write_classifier
from tests.service.engine.cuda.cuda_on_cpu import CudaOnCpu

SETTINGS = Settings(device=Device.CUDA, cuda_graphs=True, max_batch=4, max_batch_s=60)
Real = ort.OrtValue


class Buffer:
    """A value of onnxruntime on the CPU; like one on a GPU, it is copied to be read."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def numpy(self) -> Any:
        return self._value.numpy().copy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value, name)


class Buffers:
    """onnxruntime's OrtValue, with every CUDA buffer on the CPU."""

    made = 0

    @classmethod
    def ortvalue_from_numpy(cls, array: Any, device: str, number: int) -> Any:
        cls.made += 1
        assert (device, number) == ("cuda", 0)
        return Buffer(Real.ortvalue_from_numpy(array))

    @classmethod
    def ortvalue_from_shape_and_type(cls, shape: Any, dtype: Any, device: str, number: int) -> Any:
        cls.made += 1
        assert (device, number) == ("cuda", 0)
        return Buffer(Real.ortvalue_from_shape_and_type(shape, dtype))


Launches = list[tuple[str, int]]


@pytest.fixture
def launches(gpu: type[CudaOnCpu], monkeypatch: pytest.MonkeyPatch) -> Launches:
    """The graph id and the thread of each run."""
    noted: Launches = []

    def run_with_iobinding(session: CudaOnCpu, binding: Any, options: ort.RunOptions) -> None:
        noted.append((options.get_run_config_entry("gpu_graph_id"), threading.get_ident()))
        session._session.run_with_iobinding(binding, options)

    monkeypatch.setattr(ort, "OrtValue", Buffers)
    monkeypatch.setattr(CudaOnCpu, "run_with_iobinding", run_with_iobinding, raising=False)
    return noted


def test_rows_come_from_fixed_buffers(tmp_path: Path, launches: Launches) -> None:
    Buffers.made = 0
    model = load_model(write_classifier(tmp_path), SETTINGS)
    assert Buffers.made == 2 * len(model.buckets)
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8) for _ in range(3)]
    found = [model.session.run(batch) for batch in batches]
    assert Buffers.made == 2 * len(model.buckets)
    for batch, rows in zip(batches, found, strict=True):  # none was overwritten by the next
        np.testing.assert_allclose(rows, expected_probabilities(batch), atol=1e-6)


def test_a_graph_is_captured_and_probed_on_the_thread_that_replays_it(
    tmp_path: Path, launches: Launches, gpu: type[CudaOnCpu]
) -> None:
    model = load_model(write_classifier(tmp_path), SETTINGS)
    assert {graph for graph, _ in launches} == {NO_CAPTURE}
    assert all(dict(session.providers[0][1])["enable_cuda_graph"] == "1" for session in gpu.opened)
    launches.clear()
    thread = threading.Thread(target=model.prepare_thread)
    thread.start()
    thread.join()
    assert {where for _, where in launches} == {thread.ident}
    runs_to_capture, probe_runs = 2, 8
    assert [graph for graph, _ in launches].count("1") == runs_to_capture + probe_runs
    assert [graph for graph, _ in launches].count("4") == runs_to_capture + probe_runs // 4


def test_a_replay_that_answers_otherwise_is_found_before_it_serves(
    tmp_path: Path, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(write_classifier(tmp_path), SETTINGS)
    monkeypatch.setattr(CudaOnCpu, "run_with_iobinding", lambda *_: None)  # leaves the old rows in the buffer
    with pytest.raises(ArtifactError, match="probe: output differs"):
        model.prepare_thread()


def test_without_the_option_there_is_no_graph(tmp_path: Path, launches: Launches) -> None:
    model = load_model(write_classifier(tmp_path), SETTINGS.model_copy(update={"cuda_graphs": False}))
    model.prepare_thread()
    assert launches == []
