"""What a session asks of onnxruntime, as far as it shows without a GPU."""

import pytest

from quatserve.service.engine.session import CPU, CUDA, Placement, _providers, session_options
from quatserve.service.settings import Device

GIBIBYTE = 1 << 30
ON_GPU = {
    "use_tf32": "0",
    "cudnn_conv_algo_search": "HEURISTIC",
    "arena_extend_strategy": "kSameAsRequested",
}


@pytest.mark.parametrize(
    ("gpu_memory_bytes", "limit"), [(0, {}), (2 * GIBIBYTE, {"gpu_mem_limit": "2147483648"})]
)
def test_fp32_on_a_gpu_is_without_tf32_and_memory_is_bounded_where_asked(
    gpu_memory_bytes: int, limit: dict[str, str]
) -> None:
    placement = Placement(device=Device.CUDA, threads=1, gpu_memory_bytes=gpu_memory_bytes)
    assert _providers(placement) == [(CUDA, ON_GPU | limit)]


def test_a_cpu_session_knows_no_other_provider() -> None:
    assert _providers(Placement(device=Device.CPU, threads=1)) == [CPU]


def test_only_a_gpu_session_must_not_run_anything_on_the_cpu() -> None:
    key = "session.disable_cpu_ep_fallback"
    assert session_options(Placement(device=Device.CUDA, threads=1)).get_session_config_entry(key) == "1"
    with pytest.raises(RuntimeError, match=key):
        session_options(Placement(device=Device.CPU, threads=1)).get_session_config_entry(key)
