"""Loading onto a GPU: one attempt of opening, warming and probing; what is taken when it fails."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from quatserve.export.proof.contract import allowed_operators
from quatserve.service.artifact import Precision
from quatserve.service.engine.cuda.kernels import CUDA_KERNELS
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.session import CPU, CUDA
from quatserve.service.errors import ArtifactError, DeviceUnavailableError
from quatserve.service.settings import Device, PrecisionChoice, Settings
from tests.service.artifacts import (
    classifier_graph,
    expected_probabilities,
    probe_images,
    write,
    write_classifier,
)
from tests.service.engine.cuda.cuda_on_cpu import LOST, NO_MEMORY, CudaOnCpu

ON_GPU = Settings(device=Device.CUDA, max_batch_s=60)  # however slow the machine is
AUTO = ON_GPU.model_copy(update={"device": Device.AUTO})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_classifier(tmp_path)


def loaded(directory: Path, settings: Settings = ON_GPU, **changes: Any) -> Model:
    return load_model(directory, settings.model_copy(update=changes))


def provider_options(session: CudaOnCpu) -> dict[str, str]:
    ((_, options),) = session.providers
    return dict(options)


def test_each_batch_size_has_a_session_that_sees_no_other(directory: Path, gpu: type[CudaOnCpu]) -> None:
    model = loaded(directory)
    assert (model.provider, model.precision) == (CUDA, Precision.FP32)
    assert (model.buckets, model.max_batch) == ((1, 4, 8, 32), 32)
    images = np.random.default_rng(1).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    np.testing.assert_allclose(model.session.run(images), expected_probabilities(images), atol=1e-6)
    assert [set(session.sizes) for session in gpu.opened] == [{1}, {4}, {8}, {32}]


@pytest.mark.parametrize(("max_batch", "sizes"), [(1, (1,)), (6, (1, 4, 6)), (64, (1, 4, 8, 32, 64))])
def test_the_largest_batch_is_a_size_of_its_own(
    directory: Path, gpu: type[CudaOnCpu], max_batch: int, sizes: tuple[int, ...]
) -> None:
    assert loaded(directory, max_batch=max_batch).buckets == sizes


def test_a_size_that_is_too_slow_is_left_out(directory: Path, gpu: type[CudaOnCpu]) -> None:
    assert loaded(directory, max_batch_s=1e-9).buckets == (1,)


def test_the_probe_is_compared_at_every_size(
    directory: Path, gpu: type[CudaOnCpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that only batches of four show."""
    real = CudaOnCpu.run

    def off_at_four(self: CudaOnCpu, *arguments: Any) -> list[Any]:
        (rows,) = real(self, *arguments)
        return [rows + np.float32(0.1 * (len(rows) == 4))]

    monkeypatch.setattr(CudaOnCpu, "run", off_at_four)
    with pytest.raises(ArtifactError, match=r"differs by 0\.1.*batches of 4"):
        loaded(directory)


# --- options ---


def test_fp32_is_without_tf32_and_launched_by_one_thread(directory: Path, gpu: type[CudaOnCpu]) -> None:
    loaded(directory)
    for session in gpu.opened:
        assert provider_options(session) == {"arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
        assert session.options.intra_op_num_threads == 1
        assert session.options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"


def test_fp16_keeps_its_tensor_cores(tmp_path: Path, gpu: type[CudaOnCpu]) -> None:
    images = probe_images((32, 32))
    outputs = {name: expected_probabilities(images).astype(np.float32) for name in ("fp32", "fp16")}
    graphs = dict.fromkeys(outputs, classifier_graph((32, 32)))
    directory = write(tmp_path, "half", 1, "classification", (32, 32), graphs, outputs, images, 1e-4)
    model = loaded(directory, gpu_memory_bytes=1 << 30)
    assert model.precision is Precision.FP16
    assert provider_options(gpu.opened[0]) == {
        "arena_extend_strategy": "kSameAsRequested",
        "prefer_nhwc": "1",
        "fuse_conv_bias": "1",
        "gpu_mem_limit": "1073741824",
    }


# --- failures ---


def test_sizes_that_find_no_memory_are_left_out_and_said(
    directory: Path, gpu: type[CudaOnCpu], caplog: pytest.LogCaptureFixture
) -> None:
    gpu.failures[32] = NO_MEMORY
    with caplog.at_level(logging.WARNING):
        model = loaded(directory)
    assert (model.provider, model.buckets, model.max_batch) == (CUDA, (1, 4, 8), 8)
    (said,) = [record.__dict__ for record in caplog.records]
    assert (said["message"], said["size"]) == ("larger batches left out", 32)
    assert "the GPU's memory is full" in said["reason"]


FAILURES = [
    pytest.param({1: NO_MEMORY}, "the GPU's memory is full.*lower max_batch", id="no memory at all"),
    pytest.param({8: LOST}, "the GPU or its context is lost", id="a failing first run"),
    pytest.param(
        {1: "CUDA failure 209: no kernel image is available ; GPU=0"},
        "no code for this GPU's compute capability",
        id="wrong architecture",
    ),
    pytest.param({1: "cuDNN is unavailable: dlopen failed"}, "library is missing", id="no cuDNN"),
]


@pytest.mark.parametrize(("failures", "reason"), FAILURES)
def test_a_failing_first_run_refuses_cuda_with_the_reason(
    directory: Path, gpu: type[CudaOnCpu], failures: dict[int, str], reason: str
) -> None:
    gpu.failures.update(failures)
    with pytest.raises(DeviceUnavailableError, match=f"^device cuda: .*{reason}"):
        loaded(directory)


@pytest.mark.parametrize(("failures", "reason"), FAILURES)
def test_auto_then_takes_the_cpu_and_says_why(
    directory: Path, gpu: type[CudaOnCpu], failures: dict[int, str], reason: str
) -> None:
    gpu.failures.update(failures)
    model = loaded(directory, AUTO)
    assert (model.provider, model.precision) == (CPU, Precision.INT8)
    assert model.buckets == ()
    with pytest.raises(DeviceUnavailableError, match=reason):
        raise DeviceUnavailableError(model.fallback_reason)


def test_a_session_that_silently_took_the_cpu_is_found_out(
    directory: Path, gpu: type[CudaOnCpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaOnCpu, "get_providers", lambda _: [CPU])
    with pytest.raises(DeviceUnavailableError, match=f"onnxruntime took {CPU} instead"):
        loaded(directory)


@pytest.mark.parametrize("device", [Device.CUDA, Device.AUTO])
def test_a_bad_artifact_is_no_missing_device(tmp_path: Path, gpu: type[CudaOnCpu], device: Device) -> None:
    """One version is refused, and the service starts with the one below."""
    images = probe_images((32, 32))
    outputs = {"fp32": expected_probabilities(images).astype(np.float32)}
    directory = write(
        tmp_path, "odd", 1, "classification", (32, 32), {"fp32": b"no graph"}, outputs, images, 1e-4
    )
    with pytest.raises(ArtifactError, match=r"odd/1/model.onnx: the graph is not protobuf"):
        loaded(directory, device=device)


@pytest.mark.parametrize("device", [Device.CUDA, Device.AUTO])
def test_labels_must_match_the_outputs_on_a_gpu_too(
    directory: Path, gpu: type[CudaOnCpu], device: Device
) -> None:
    path = directory / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"labels": ["red", "green"]}))
    with pytest.raises(ArtifactError, match=r"float32\[1, 3\], not float32\[1, 2\]"):
        loaded(directory, device=device)


# --- operators ---


def test_int8_on_cuda_is_refused_by_name(directory: Path, gpu: type[CudaOnCpu]) -> None:
    with pytest.raises(
        DeviceUnavailableError, match=r"int8 does not run on CUDA.*int32: take --precision fp16"
    ):
        loaded(directory, precision=PrecisionChoice.INT8)
    assert gpu.opened == []


def test_auto_runs_int8_on_the_cpu_for_that_reason(directory: Path, gpu: type[CudaOnCpu]) -> None:
    model = loaded(directory, AUTO, precision=PrecisionChoice.INT8)
    assert (model.provider, model.precision) == (CPU, Precision.INT8)
    assert "int8 does not run on CUDA" in str(model.fallback_reason)


def with_operator(name: str) -> Callable[[bytes], bytes]:
    """Puts an operator that changes nothing in front of the softmax."""

    def change(graph: bytes) -> bytes:
        model = onnx.load_from_string(graph)
        softmax = model.graph.node[-1]
        model.graph.node.insert(len(model.graph.node) - 1, helper.make_node(name, softmax.input, ["odd"]))
        softmax.input[0] = "odd"
        return bytes(model.SerializeToString())

    return change


def test_an_operator_without_a_cuda_kernel_is_named(tmp_path: Path, gpu: type[CudaOnCpu]) -> None:
    images = probe_images((32, 32))
    outputs = {"fp32": expected_probabilities(images).astype(np.float32)}
    graph = with_operator("Mish")(classifier_graph((32, 32)))
    directory = write(tmp_path, "odd", 1, "classification", (32, 32), {"fp32": graph}, outputs, images, 0.25)
    with pytest.raises(DeviceUnavailableError, match=r"no CUDA kernel for .*Softplus.*: take --device cpu"):
        loaded(directory)
    assert gpu.opened == []


def test_every_operator_that_build_writes_has_a_cuda_kernel() -> None:
    assert allowed_operators(Precision.FP16) <= CUDA_KERNELS
