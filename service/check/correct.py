"""Whether sessions on the GPU compute what they should, and refuse what they should."""

import json
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quatserve.service.artifact import INPUT_NAME, Precision
from quatserve.service.check.bench import Artifact, Bench, batch_of
from quatserve.service.check.report import Row, judged
from quatserve.service.engine.cuda.buckets import bucket_sizes
from quatserve.service.engine.cuda.session import create, provider_options
from quatserve.service.engine.load import Model
from quatserve.service.engine.session import CUDA
from quatserve.service.errors import DeviceUnavailableError

COPIES = {"MemcpyFromHost", "MemcpyToHost"}
TINY_ARENA_BYTES = 1 << 10
ROUNDS_TOGETHER = 100


def check_probes(bench: Bench) -> Iterator[Row]:
    """Provider, batch sizes and probe of every graph, at every batch size, padded."""
    for artifact, precision in bench.graphs():
        model = bench.open(artifact, precision)
        probe = artifact.probe(precision)
        differences = {size: probe.check(model.session.run, size, (size,)) for size in model.buckets}
        wanted = bucket_sizes(bench.settings.max_batch)
        shown = ", ".join(f"{size}: {difference:.2g}" for size, difference in differences.items())
        yield judged(
            f"probe, {artifact.name} {precision}",
            model.provider == CUDA and model.buckets == wanted,
            f"{model.provider}; differences by batch size {shown}; tolerance {probe.tolerance:g}; "
            f"batch sizes wanted {', '.join(map(str, wanted))}",
            differences={str(size): difference for size, difference in differences.items()},
        )


def check_int8(bench: Bench) -> Iterator[Row]:
    """INT8 has no CUDA kernels, and the refusal says so."""
    for artifact in bench.artifacts():
        if artifact.description.file(Precision.INT8):
            name = f"INT8 is refused, {artifact.name}"
            yield _refused(name, bench, artifact, Precision.INT8, "int8 does not run on CUDA")


def check_memory_limit(bench: Bench) -> Iterator[Row]:
    """A limit that nothing fits into is a refusal that names it."""
    name, reason = "a tiny gpu_memory_bytes is refused", "gpu_memory_bytes too small"
    limit = {"gpu_memory_bytes": TINY_ARENA_BYTES}
    yield _refused(name, bench, bench.heaviest(), Precision.FP32, reason, **limit)


def _refused(
    name: str, bench: Bench, artifact: Artifact, precision: Precision, reason: str, **settings: Any
) -> Row:
    try:
        bench.open(artifact, precision, **settings)
    except DeviceUnavailableError as error:
        return judged(name, reason in str(error), str(error))
    return judged(name, False, "it was loaded")


def check_copies(bench: Bench) -> Iterator[Row]:
    """The profile of a run shows every operator on CUDA, and no copy between two of them."""
    for artifact, precision in bench.graphs():
        with tempfile.TemporaryDirectory() as directory:
            kernels = _profile(artifact, precision, Path(directory))
        yield judge_kernels(f"no copies, {artifact.name} {precision}", kernels)


def judge_kernels(name: str, kernels: list[tuple[str, str]]) -> Row:
    providers = Counter(provider for _, provider in kernels)
    copies = sum(operator in COPIES for operator, _ in kernels)
    return judged(
        name,
        providers.keys() == {CUDA} and not copies,
        f"operators by provider: {dict(providers)}; copies: {copies}",
        copies=copies,
    )


def _profile(artifact: Artifact, precision: Precision, directory: Path) -> list[tuple[str, str]]:
    """(operator, provider) of each kernel of one run, by onnxruntime's own profile."""
    options = provider_options(precision)
    session = create(artifact.graph(precision), options, profile=directory / "profile")
    session.run(None, {INPUT_NAME: batch_of(artifact.description, 1)})
    arguments = [event.get("args", {}) for event in json.loads(Path(session.end_profiling()).read_text())]
    return [(found["op_name"], found["provider"]) for found in arguments if "provider" in found]


def check_together(bench: Bench) -> Iterator[Row]:
    """All models at once, each on its own thread: the answers stay those of the probe."""
    models = [bench.open(artifact, Precision.FP32) for artifact in bench.artifacts()]
    failures: list[str] = []

    def repeat(model: Model) -> None:
        try:
            for _ in range(ROUNDS_TOGETHER):
                model.probe(model.session.run)
        except Exception as error:  # noqa: BLE001  # told in the row
            failures.append(f"{model.description.name}: {error}")

    threads = [threading.Thread(target=repeat, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    agree = f"{len(models)} models, {ROUNDS_TOGETHER} probes each: all agree"
    yield judged("all models at once", not failures, "; ".join(failures) or agree)
