"""The training step of every algebra at equal width: time against the real network's, and peak memory.

    python benchmarks/training_step.py

Every algebra and mode (compiled, uncompiled) has a process of its own, so that its peak memory is its own.
The processes take turns, one step each, round after round: whatever disturbs the machine disturbs all alike,
and a ratio is that of two steps of the same round. Writes docs/benchmarks/training_step.md.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from quatserve.training.loop.allocator import SETTINGS  # noqa: E402 - the repository is where this file is

ALGEBRAS = ("real", "complex", "quaternion", "octonion")
MODES = ("compiled", "uncompiled")
WIDEST = "widest"  # compiled with the widest vectors there are: what training/compilation.py prevents
BF16 = "bf16"  # compiled, as recipes of that precision train
SIDE, CLASSES = 32, 10


@dataclass(frozen=True)
class Result:
    algebra: str
    mode: str
    parameters: int
    seconds: list[float]  # a step, round by round
    memory_mib: float


def main() -> None:
    options = _options()
    if options.worker:
        algebra, _, mode = options.worker.partition("-")
        work(algebra, mode, options)
        return
    results = measure(options)
    report = table(results, options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(report)
    print(report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30, help="steps measured of each; default: 30")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before, not counted; default: 3")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2, help="2 is the shallow network, 10 the deep one")
    parser.add_argument("--width", type=int, default=32, help="real channels of the first stage")
    parser.add_argument("--modes", nargs="+", choices=(*MODES, WIDEST, BF16), default=MODES)
    parser.add_argument("--algebras", nargs="+", choices=ALGEBRAS, default=ALGEBRAS, help="real among them")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks" / "training_step.md")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> list[Result]:
    """Start one worker each, then let them step in turn."""
    names = [(algebra, mode) for mode in options.modes for algebra in options.algebras]
    command = [sys.executable, __file__, *sys.argv[1:], "--worker"]
    workers = []
    for algebra, mode in names:  # one after the other: compilation would disturb its neighbours
        worker = subprocess.Popen(
            [*command, f"{algebra}-{mode}"],
            env=os.environ | SETTINGS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        workers.append(worker)
        print(f"{algebra}, {mode}: ready after {_ask(worker, None)['seconds']:.0f} s", file=sys.stderr)
    seconds: list[list[float]] = [[] for _ in names]
    for _ in range(options.rounds):
        for taken, worker in zip(seconds, workers, strict=True):
            taken.append(_ask(worker, "step")["seconds"])
    results = []
    for (algebra, mode), taken, worker in zip(names, seconds, workers, strict=True):
        last = _ask(worker, "stop")
        worker.wait()
        results.append(Result(algebra, mode, int(last["parameters"]), taken, last["memory_mib"]))
    return results


def _ask(worker: "subprocess.Popen[str]", word: str | None) -> dict[str, float]:
    assert worker.stdin is not None
    assert worker.stdout is not None
    if word is not None:
        worker.stdin.write(word + "\n")
        worker.stdin.flush()
    answer: dict[str, float] = json.loads(worker.stdout.readline())
    return answer


def work(algebra: str, mode: str, options: argparse.Namespace) -> None:
    """Build and warm up a training step, then take one at every "step" read."""
    import torch
    from torch.nn import functional as F

    from quatserve.training.loop.compilation import compiled
    from quatserve.training.loop.trainer import parameter_groups
    from quatserve.training.networks.residual import Network, NetworkConfig

    started = time.perf_counter()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    config = NetworkConfig(algebra=algebra, depth=options.depth, width=options.width, classes=CLASSES)
    network = Network(config)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    groups = parameter_groups(network, 2e-4)
    optimiser = torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True, fused=True)
    model: torch.nn.Module = network
    if mode == WIDEST:
        model = torch.compile(network, dynamic=False)  # type: ignore[assignment]
    elif mode in ("compiled", BF16):
        model = compiled(network)
    images = torch.randn(options.batch, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (options.batch,))

    def step() -> float:
        begun = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == BF16):
            logits = model(images)
        F.cross_entropy(logits.float(), labels).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        return time.perf_counter() - begun

    for _ in range(options.warm_up):
        step()
    answer: dict[str, float] = {"seconds": time.perf_counter() - started}
    print(json.dumps(answer), flush=True)
    for word in sys.stdin:
        if word.strip() == "stop":
            break
        print(json.dumps({"seconds": step()}), flush=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    trainable = sum(parameter.numel() for parameter in network.parameters())
    print(json.dumps({"memory_mib": memory, "parameters": trainable}), flush=True)


def table(results: list[Result], options: argparse.Namespace) -> str:
    rows = []
    for result in results:
        real = next(r for r in results if (r.algebra, r.mode) == ("real", result.mode))
        ratios = [ours / theirs for ours, theirs in zip(result.seconds, real.seconds, strict=True)]
        low, middle, high = _quartiles(ratios)
        milliseconds = _quartiles([1000 * s for s in result.seconds])
        rows.append(
            f"| {result.algebra} | {result.mode} | {result.parameters:,} | {milliseconds[1]:.0f} "
            f"({milliseconds[0]:.0f}-{milliseconds[2]:.0f}) | {1000 * options.batch / milliseconds[1]:.0f} "
            f"| {middle:.2f} ({low:.2f}-{high:.2f}) | {result.memory_mib:,.0f} |"
        )
    return (
        HEAD.format(command=_command(), machine=machine(options.threads), **vars(options))
        + "\n".join(rows)
        + "\n"
    )


HEAD = """# The training step of every algebra, at equal width

`{command}`

{machine}.

Depth {depth}, width {width}, batches of {batch} images of 32 x 32, seed {seed}; {rounds} steps of each after
{warm_up} of warm-up, in turns. A step is zeroing, forward, backward, clipping and Nesterov's
update, as in the paper's recipes; the orthogonal steps of our own are not in it. Medians, quartiles in
brackets; a ratio is that of two steps of one round. Memory is the peak of a whole process, with libraries and
compiler. The paper says of quaternion training: "roughly 50 % longer".

| algebra | mode | trainable parameters | ms a step | images/s | ratio to real | peak memory, MiB |
|---|---|---:|---:|---:|---:|---:|
"""


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def _command() -> str:
    return " ".join(["python", "benchmarks/training_step.py", *sys.argv[1:]])


def machine(threads: int) -> str:
    import torch

    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text().splitlines()
        model = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model
        )
    capability = torch.backends.cpu.get_cpu_capability()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{model} ({capability}), {threads} threads, {versions}"


if __name__ == "__main__":
    main()
