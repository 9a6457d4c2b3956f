"""Whether sessions on the GPU are as quick as they should be, and what each option of theirs does."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import median

from quatserve.service.artifact import Precision
from quatserve.service.check.bench import RUNS, Artifact, Bench, batch_of, milliseconds
from quatserve.service.check.report import Row, judged, measured
from quatserve.service.engine.cuda.session import CudaSession, provider_options

MAX_ALTERNATING_RATIO = 1.5
VARIANTS: dict[Precision, dict[str, dict[str, str]]] = {
    Precision.FP32: {"use_tf32=1": {"use_tf32": "1"}, "prefer_nhwc=1": {"prefer_nhwc": "1"}},
    Precision.FP16: {
        "prefer_nhwc=0": {"prefer_nhwc": "0"},
        "fuse_conv_bias=0": {"fuse_conv_bias": "0"},
        "both 0": {"prefer_nhwc": "0", "fuse_conv_bias": "0"},
    },
}


def check_alternating(bench: Bench) -> Iterator[Row]:
    """Batches of 1 and of the largest size in turn: rebuilding plans would take many times as long."""
    for artifact, precision in bench.graphs():
        model = bench.open(artifact, precision)
        run = model.session.run
        batches = {size: batch_of(artifact.description, size) for size in (1, model.max_batch)}
        steady = {size: bench.seconds(run, batch) for size, batch in batches.items()}
        turns = [(size, bench.timed(run, batches[size])) for _ in range(RUNS) for size in batches]
        alternating = {size: median(s for turn, s in turns if turn == size) for size in batches}
        ratios = {size: alternating[size] / steady[size] for size in batches}
        shown = ", ".join(
            f"batch {size}: {milliseconds(alternating[size])} for {milliseconds(steady[size])} ({ratio:.2f})"
            for size, ratio in ratios.items()
        )
        yield judged(
            f"alternating sizes, {artifact.name} {precision}",
            max(ratios.values()) <= MAX_ALTERNATING_RATIO,
            f"{shown}; at most {MAX_ALTERNATING_RATIO}",
            ratios={str(size): ratio for size, ratio in ratios.items()},
        )


def check_fp16(bench: Bench) -> Iterator[Row]:
    """fp16 is quicker where arithmetic decides: it has its tensor cores."""
    artifact, size = bench.heaviest(), bench.settings.max_batch
    if not artifact.description.file(Precision.FP16):
        yield measured("fp16 against fp32", f"{artifact.name} has no fp16 file")
        return
    fp32, fp16 = (_pace(bench, artifact, precision) for precision in (Precision.FP32, Precision.FP16))
    yield judged(
        f"fp16 against fp32, {artifact.name}",
        fp16 < fp32,
        f"batch {size}: {milliseconds(fp16)} for {milliseconds(fp32)}",
        fp32=fp32,
        fp16=fp16,
    )


def _pace(bench: Bench, artifact: Artifact, precision: Precision) -> float:
    model = bench.open(artifact, precision)
    return bench.seconds(model.session.run, batch_of(artifact.description, model.max_batch)) / model.max_batch


def check_options(bench: Bench) -> Iterator[Row]:
    """The default options, each against its contrary: pace, and distance from the probe."""
    for artifact, precision in bench.graphs():
        default = provider_options(precision)
        found = {
            name: _with_options(bench, artifact, precision, default | changes)
            for name, changes in ({"default": dict[str, str]()} | VARIANTS[precision]).items()
        }
        shown = "; ".join(
            f"{name}: {milliseconds(pace)}, off by {distance:.2g}" for name, (pace, distance) in found.items()
        )
        yield measured(f"options, {artifact.name} {precision}", shown, **found)


def _with_options(
    bench: Bench, artifact: Artifact, precision: Precision, options: Mapping[str, str]
) -> tuple[float, float]:
    session = CudaSession(artifact.graph(precision), artifact.description, options)
    size = bench.settings.max_batch
    pace = bench.seconds(session.run, batch_of(artifact.description, size))
    return pace, replace(artifact.probe(precision), tolerance=math.inf).check(session.run, size, (size,))


def check_cuda_graphs(bench: Bench) -> Iterator[Row]:
    """CUDA graphs against single launches: the probe must agree; the times say whether to turn them on."""
    for artifact, precision in bench.graphs():
        plain = bench.open(artifact, precision)
        replayed = bench.open(artifact, precision, cuda_graphs=True)
        replayed.prepare_thread()  # captures, and probes each size again
        found = {}
        for size in (1, plain.max_batch):
            batch = batch_of(artifact.description, size)
            found[size] = bench.seconds(replayed.session.run, batch), bench.seconds(plain.session.run, batch)
        shown = ", ".join(
            f"batch {size}: {milliseconds(graph)} for {milliseconds(launches)}"
            for size, (graph, launches) in found.items()
        )
        yield judged(
            f"CUDA graphs, {artifact.name} {precision}",
            True,
            f"{shown}; the probe agrees at every size",
            ratios={str(size): graph / launches for size, (graph, launches) in found.items()},
        )
