"""Reports the contents of an artifact, as tables for people or as plain data for programs."""

import json
from pathlib import Path
from typing import Any

import onnx

from quatserve.export.proof.contract import operators
from quatserve.service.artifact import Description, Task, read_description, read_verified
from quatserve.training.commands.table import format_table

FLOAT_BYTES = 4


def inspect(directory: Path) -> dict[str, Any]:
    """Return model.json, the operators of every file and the sizes before and after folding."""
    description = read_description(directory)
    graphs = {
        file.precision.value: onnx.load_from_string(
            read_verified(directory / file.name, file.sha256, file.bytes)
        )
        for file in description.files
    }
    return {
        "description": description.model_dump(mode="json"),
        "operators": {p: dict(sorted(operators(graph).items())) for p, graph in graphs.items()},
        "nodes": {p: len(graph.graph.node) for p, graph in graphs.items()},
        "fp32_bytes": {
            "before_folding": FLOAT_BYTES * description.parameters.total,
            "after_folding": FLOAT_BYTES * description.parameters.folded,
        },
    }


def report(found: dict[str, Any]) -> str:
    model = Description.model_validate_json(json.dumps(found["description"]))
    return "\n\n".join(
        [
            f"{model.name}/{model.version}: {model.summary}",
            _sizes(model, found),
            _files(model, found),
            _operators(found),
            _metrics(model),
        ]
    )


def _sizes(model: Description, found: dict[str, Any]) -> str:
    parameters, size = model.parameters, found["fp32_bytes"]
    rows = [
        ["before folding", f"{parameters.total:,}", f"{size['before_folding']:,}"],
        ["trainable ones", f"{parameters.trainable:,}", f"{FLOAT_BYTES * parameters.trainable:,}"],
        ["after folding", f"{parameters.folded:,}", f"{size['after_folding']:,}"],
    ]
    work = (
        f"\n  {model.multiply_accumulates:,} multiply-accumulates per image of {model.height} x {model.width}"
    )
    return format_table(["parameters", "numbers", "bytes in fp32"], rows, right=(1, 2)) + work


def _files(model: Description, found: dict[str, Any]) -> str:
    rows = [
        [f.name, f.precision, f"{f.bytes:,}", str(found["nodes"][f.precision]), f"{f.tolerance:g}"]
        for f in model.files
    ]
    table = format_table(["file", "precision", "bytes", "nodes", "tolerance"], rows, right=(2, 3, 4))
    parity = model.parity
    levels = "" if parity.max_levels is None else f" ({parity.max_levels} of 255 levels)"
    batches = ", ".join(map(str, parity.batches))
    return (
        f"{table}\n  parity of fp32 with the network in float64: logits within "
        f"{parity.max_difference:.2g}{levels}, {parity.images} images, batches of {batches}"
    )


def _operators(found: dict[str, Any]) -> str:
    counts: dict[str, dict[str, int]] = found["operators"]
    names = sorted({name for precision in counts.values() for name in precision})
    rows = [[name, *(str(counts[p].get(name, "")) for p in counts)] for name in names]
    return format_table(["operator", *counts], rows, right=range(1, len(counts) + 1))


def _metrics(model: Description) -> str:
    def shown(value: float) -> str:
        return f"{value:.2%}" if model.task is Task.CLASSIFICATION else f"{value:.4f}"

    rows = [
        [m.name, m.dataset or "", m.split, m.precision, f"{m.samples:,}", shown(m.value)]
        for m in model.metrics
    ]
    return format_table(["metric", "data", "split", "precision", "images", "value"], rows, right=(4, 5))
