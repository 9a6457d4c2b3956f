"""Writes `config.pbtxt` and `labels.txt`, which make `models/` a repository of NVIDIA Triton."""

from pathlib import Path

from quatserve.service.artifact import INPUT_NAME, VERSION_PATTERN, Description, Task

CONFIG, LABELS = "config.pbtxt", "labels.txt"
MAX_BATCH = 32


def write_repository_files(directory: Path, model: Description) -> None:
    """Write both files into `models/NAME`, each at once, unless a higher version is there."""
    versions = [int(path.name) for path in directory.iterdir() if VERSION_PATTERN.fullmatch(path.name)]
    if model.version < max(versions):
        return
    _write(directory / LABELS, "".join(f"{label}\n" for label in model.labels))
    _write(directory / CONFIG, config(model))


def config(model: Description) -> str:
    """The text form of Triton's ModelConfig; Triton adds the batch to the dimensions."""
    classify = model.task is Task.CLASSIFICATION
    count = len(model.labels)
    kind, dims = ("FP32", [count]) if classify else ("UINT8", [count, model.height, model.width])
    labels = f'\n    label_filename: "{LABELS}"' if classify else ""
    return f"""\
name: "{model.name}"
backend: "onnxruntime"
default_model_filename: "{model.files[0].name}"
max_batch_size: {MAX_BATCH}
input [
  {{
    name: "{INPUT_NAME}"
    data_type: TYPE_UINT8
    dims: [ {model.height}, {model.width}, 3 ]
  }}
]
output [
  {{
    name: "{model.output_name}"
    data_type: TYPE_{kind}
    dims: [ {", ".join(map(str, dims))} ]{labels}
  }}
]
dynamic_batching {{ }}
"""


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)
