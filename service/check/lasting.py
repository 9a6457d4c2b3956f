"""Whether GPU memory stays as it is while models are replaced."""

import gc
from collections.abc import Callable, Iterator

from quatserve.service.artifact import Precision
from quatserve.service.check.bench import Bench
from quatserve.service.check.host import gpu_memory
from quatserve.service.check.report import Row, judged

SWAPS = 50
SETTLING_SWAPS = 3  # CUDA and cuDNN keep what the first ones have loaded
MAX_GROWTH_BYTES = 32 << 20
MEBIBYTE = 1 << 20


def check_swaps(bench: Bench, memory: Callable[[], tuple[int, int]] = gpu_memory) -> Iterator[Row]:
    """A model is loaded beside the one that serves, takes its place, and the old one is dropped."""
    artifact = bench.heaviest()
    serving = bench.open(artifact, Precision.FP32)
    before = 0
    for swap in range(SWAPS):
        serving = bench.open(artifact, Precision.FP32)
        if swap == SETTLING_SWAPS:
            before = _free(memory)
    growth = before - _free(memory)
    serving.probe(serving.session.run)
    yield judged(
        f"{SWAPS} swaps, {artifact.name}",
        growth <= MAX_GROWTH_BYTES,
        f"GPU memory grew by {growth / MEBIBYTE:.0f} MiB; at most {MAX_GROWTH_BYTES // MEBIBYTE}",
        growth=growth,
    )


def _free(memory: Callable[[], tuple[int, int]]) -> int:
    gc.collect()
    return memory()[0]
