"""A machine whose GPU is the CPU."""

import onnxruntime as ort
import pytest

from quatserve.service.engine.cuda.driver import Gpu
from tests.service.engine.cuda.cuda_on_cpu import CudaOnCpu


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[CudaOnCpu]:
    CudaOnCpu.failures, CudaOnCpu.opened = {}, []
    monkeypatch.setattr(ort, "InferenceSession", CudaOnCpu)
    monkeypatch.setattr("quatserve.service.engine.load.require_cuda", lambda: Gpu("none", (9, 0), (13, 0)))
    return CudaOnCpu
