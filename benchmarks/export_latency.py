"""How fast the exported networks are: python -m benchmarks.export_latency [--out docs/export_latency.md]

Four ways to run the shallow CIFAR network, in turn, in one process, so that whatever else the machine does
falls on all of them alike: folded quaternion and folded real in onnxruntime, quaternion in INT8, and the
unfolded quaternion network in torch. Weights are untrained: the time does not depend on them.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from quatserve.export.folding import fold
from quatserve.export.graph import write_graph
from quatserve.export.interface import Interface
from quatserve.export.precision.int8 import quantise
from quatserve.export.scenes import smooth
from quatserve.service.artifact import INPUT_NAME, Precision, Task
from quatserve.training.data.augment import normalise
from quatserve.training.networks.residual import Network, NetworkConfig

BATCHES = (1, 32)
ROUNDS = {1: 400, 32: 60}
WARM_UP = 5
SIZE = 32
INTERFACE = Interface(task=Task.CLASSIFICATION, height=SIZE, width=SIZE)
Run = Callable[[NDArray[np.uint8]], object]
QUATERNION, REAL, INT8 = "quaternion, folded", "real, folded", "quaternion, INT8"
EAGER = "quaternion, torch eager"


@dataclass(frozen=True)
class Bound:
    """What the ratio of two contestants' times should be, and at which batch sizes."""

    slow: str
    fast: str
    words: str
    met: Callable[[float], bool]
    batches: tuple[int, ...] = BATCHES


BOUNDS = (
    Bound(QUATERNION, REAL, "at most 1.15", lambda found: found <= 1.15),
    Bound(EAGER, QUATERNION, "at least 3 at batch 1", lambda found: found >= 3, (1,)),
    Bound(QUATERNION, INT8, "at least 2 at batch 32, with VNNI", lambda found: found >= 2, (32,)),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/export_latency.md"), metavar="FILE")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of either runtime; default: 1")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs = contestants(options.threads)
    times = {batch: alternate(runs, batch) for batch in BATCHES}
    text = report(times, options.threads)
    options.out.write_text(text)
    print(text)
    sys.exit(not all(is_met(times, bound) for bound in BOUNDS))


def contestants(threads: int) -> dict[str, Run]:
    images = smooth(64, SIZE, SIZE, 0)
    networks = {algebra: warmed(algebra, images) for algebra in ("quaternion", "real")}
    files = {
        algebra: write_graph(fold(network), INTERFACE, Precision.FP32).SerializeToString()
        for algebra, network in networks.items()
    }
    return {
        QUATERNION: in_onnxruntime(files["quaternion"], threads),
        REAL: in_onnxruntime(files["real"], threads),
        INT8: in_onnxruntime(quantise(files["quaternion"], images).SerializeToString(), threads),
        EAGER: in_torch(networks["quaternion"]),
    }


@torch.no_grad()
def warmed(algebra: str, images: NDArray[np.uint8]) -> Network:
    """Untrained, with the statistics of real activations."""
    torch.manual_seed(0)
    network = Network(NetworkConfig(algebra=algebra)).train()
    for _ in range(5):
        network(normalise(torch.from_numpy(images).permute(0, 3, 1, 2)))
    return network.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def in_onnxruntime(model: bytes, threads: int) -> Run:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {INPUT_NAME: images})


def in_torch(network: Network) -> Run:
    """As anybody would call it: uint8 pixels to probabilities."""

    @torch.inference_mode()
    def run(images: NDArray[np.uint8]) -> object:
        return network(normalise(torch.from_numpy(images).permute(0, 3, 1, 2))).softmax(1)

    return run


def alternate(runs: dict[str, Run], batch: int) -> dict[str, list[float]]:
    """Milliseconds of every round, each contestant once a round."""
    images = smooth(batch, SIZE, SIZE, 1)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(WARM_UP + ROUNDS[batch]):
        for name, run in runs.items():
            begun = time.perf_counter()
            run(images)
            if number >= WARM_UP:
                times[name].append(1000 * (time.perf_counter() - begun))
    return times


def ratio(times: dict[str, list[float]], slow: str, fast: str) -> float:
    """The median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True))


def report(times: dict[int, dict[str, list[float]]], threads: int) -> str:
    return f"""# Latency of exported networks

`python -m benchmarks.export_latency --threads {threads}`: shallow CIFAR networks of width 32, seed 0, one run
of {", ".join(f"{ROUNDS[b]} rounds at batch {b}" for b in BATCHES)}, each contestant once a round.
{processor()}; onnxruntime {ort.__version__}, torch {torch.__version__}.

Milliseconds, median (10th to 90th percentile):

{table(["network"], [[name, *(shown(times[b][name]) for b in BATCHES)] for name in times[1]])}

Ratios, median over the rounds:

{table(["ratio", "bound", "met"], [ratio_row(times, bound) for bound in BOUNDS])}
"""


def table(head: list[str], rows: list[list[str]]) -> str:
    columns = [*head, *(f"batch {b}" for b in BATCHES)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, ["---"] * len(columns), *rows])


def is_met(times: dict[int, dict[str, list[float]]], bound: Bound) -> bool:
    return all(bound.met(ratio(times[batch], bound.slow, bound.fast)) for batch in bound.batches)


def ratio_row(times: dict[int, dict[str, list[float]]], bound: Bound) -> list[str]:
    ratios = (f"{ratio(times[batch], bound.slow, bound.fast):.2f}" for batch in BATCHES)
    met = "yes" if is_met(times, bound) else "**no**"
    return [f"{bound.slow} / {bound.fast}", bound.words, met, *ratios]


def shown(values: list[float]) -> str:
    deciles = statistics.quantiles(values, n=10)
    return f"{statistics.median(values):.2f} ({deciles[0]:.2f} to {deciles[-1]:.2f})"


def processor() -> str:
    """Its name, and whether it has VNNI."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    vnni = "with" if "vnni" in fields.get("flags", "") else "without"
    return f"{fields.get('model name', platform.machine())} {vnni} VNNI"


if __name__ == "__main__":
    main()
