"""Wide layers by blocks and by bilinear forms, beside torch's real layer of the same width.

    python benchmarks/products.py

Three ways to compute one layer take turns, forward and backward: torch's own real layer, the block matrix of
the hypercomplex weight, and the algebra's bilinear form (3 products for 4, 8 for 16, 32 for 64). A ratio is
that of two runs of one round. The figures decide `form_gains_from` of the layers: from which width on they take
the form. Writes docs/benchmarks/products.md; `--device cuda` measures a GPU.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.training_step import machine  # noqa: E402 - the repository is where this file is
from quatserve.training.loop.allocator import SETTINGS  # noqa: E402

ALGEBRAS = ("complex", "quaternion", "octonion")
KINDS = ("3x3", "1x1", "linear")
WIDTHS = (128, 256, 512, 1024)
VALUES = 8 * 16 * 16  # images of 16 x 16 in a batch of 8, or as many rows
SIDE = 16
WARM_UP = 2
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
WAYS = ("real", "blocks", "form")


@dataclass(frozen=True)
class Case:
    algebra: str
    kind: str
    width: int


def main() -> None:
    options = _options()
    if not any(name in os.environ for name in SETTINGS):  # glibc reads them when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | SETTINGS)
    import torch

    torch.set_num_threads(options.threads)
    rows = []
    for kind in options.kinds:
        for algebra in options.algebras:
            for width in options.widths:
                case = Case(algebra, kind, width)
                rows.append(row(case, measure(case, options)))
                print(rows[-1], flush=True)
    command = " ".join(["python", "benchmarks/products.py", *sys.argv[1:]])
    head = HEAD.format(command=command, machine=machine(options.threads), **vars(options))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(head + "\n".join(rows) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="runs measured of each; default: 9")
    parser.add_argument("--algebras", nargs="+", choices=ALGEBRAS, default=ALGEBRAS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", action="store_true", help="all three by torch.compile")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: of the processor, for one thread on a busy machine",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks" / "products.md")
    return parser.parse_args()


def measure(case: Case, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each way, round by round."""
    steps = {way: step(case, way, options) for way in WAYS}
    for _ in range(WARM_UP):
        for run in steps.values():
            run()
    rounds = [{way: run() for way, run in steps.items()} for _ in range(options.rounds)]
    return {way: [seconds[way] for seconds in rounds] for way in WAYS}


def step(case: Case, way: str, options: argparse.Namespace) -> Callable[[], float]:
    """One forward and backward run of a layer, which answers how long it took."""
    import torch

    clock, layer = CLOCKS[options.clock], build(case, way).to(options.device)
    shape = (VALUES, case.width)
    x = torch.randn(shape, device=options.device)
    if case.kind != "linear":
        layer = layer.to(memory_format=torch.channels_last)
        x = x.reshape(-1, SIDE, SIDE, case.width).movedim(-1, 1)
    x.requires_grad_()
    model = torch.compile(layer, dynamic=False) if options.compiled else layer
    gradient = torch.randn_like(x)

    def wait() -> None:
        if x.is_cuda:
            torch.cuda.synchronize()

    def run() -> float:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        wait()
        begun = clock()
        model(x).backward(gradient)
        wait()
        return clock() - begun

    return run


def build(case: Case, way: str) -> Any:
    """A layer as wide in as out, without bias, that takes the way it is told."""
    from torch import nn

    from quatserve import nn as hypercomplex

    module: Any = nn if way == "real" else hypercomplex
    prefix = "" if way == "real" else case.algebra.capitalize()
    if case.kind == "linear":
        layer = getattr(module, f"{prefix}Linear")(case.width, case.width, bias=False)
    else:
        kernel = int(case.kind[0])
        layer = getattr(module, f"{prefix}Conv2d")(case.width, case.width, kernel, padding="same", bias=False)
    least = {case.algebra: 0.0 if way == "form" else math.inf}
    layer.form_gains_from = dict.fromkeys(("cpu", "cuda"), least)
    return layer


def row(case: Case, seconds: dict[str, list[float]]) -> str:
    def ratio(way: str) -> str:
        pairs = zip(seconds[way], seconds["real"], strict=True)
        return f"{statistics.median(ours / real for ours, real in pairs):.2f}"

    products = case.width * (9 if case.kind == "3x3" else 1) / 2
    milliseconds = 1000 * statistics.median(seconds["real"])
    return (
        f"| {case.kind} | {case.algebra} | {case.width} | {products:.0f} | {milliseconds:.1f} "
        f"| {ratio('blocks')} | {ratio('form')} |"
    )


HEAD = """# Hypercomplex layers by blocks and by bilinear forms

`{command}`

{machine}.

Layers as wide in as out, forward and backward, of 8 images of 16 x 16 (or 2,048 rows), in turns. The last two
columns are multiples of torch's real layer of the same width: medians over {rounds} rounds, each the ratio of
two runs of one round, by {clock} time. "Products" counts those of the block matrix for each number that the
layer reads or writes: what `form_gains_from` compares.

| layer | algebra | width | products | real, ms | blocks | form |
|---|---|---:|---:|---:|---:|---:|
"""


if __name__ == "__main__":
    main()
