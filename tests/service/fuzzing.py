"""schemathesis against a running service, with input that not only the schema takes for valid.

To a schema any bytes are an image and any four numbers a shape. Importing this module registers real images
for the image types, and real tensors for the Open Inference Protocol.
"""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import strategies as st
from PIL import Image
from schemathesis import Case, GenerationMode, HookContext

from tests.service.artifacts import CLASSIFIER, SEGMENTER
from tests.service.harness import REPOSITORY, encoded

FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/bmp": "BMP"}
SIZES = {CLASSIFIER: (32, 32), SEGMENTER: (24, 80)}
MODELS = {"/classify": CLASSIFIER, "/segment": SEGMENTER}


def images(kind: str) -> st.SearchStrategy[bytes]:
    """Small whole images of one format: other sizes than any network's, grey as well as colour."""
    side = st.integers(1, 40)
    picture = st.builds(Image.new, st.sampled_from(["L", "RGB"]), st.tuples(side, side), st.integers(0, 255))
    return picture.map(lambda image: encoded(image, kind))


for media_type, kind in FORMATS.items():
    schemathesis.openapi.media_type(media_type, images(kind))


@st.composite
def tensor_cases(draw: st.DrawFn, case: Case[Any]) -> Case[Any]:
    """The same request to a model that is there, with as many numbers as its shape says."""
    name = draw(st.sampled_from(sorted(SIZES)))
    shape = [draw(st.integers(1, 3)), *SIZES[name], 3]
    data = [draw(st.integers(0, 255))] * math.prod(shape)
    case.path_parameters = {key: name if key == "name" else "1" for key in case.path_parameters}
    tensor: dict[str, Any] = {"name": "images", "datatype": "UINT8", "shape": shape, "data": data}
    case.body = {"inputs": [tensor]}
    return case


def flatmap_case(context: HookContext, case: Case[Any]) -> st.SearchStrategy[Case[Any]]:
    """A valid case asks for a model that is served, and that does the task."""
    valid = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
    path = context.operation.path if context.operation is not None else ""
    if valid and path in MODELS and "model" in case.query:
        case.query["model"] = MODELS[path]
    return tensor_cases(case) if valid and path.endswith("/infer") else st.just(case)


schemathesis.hook(flatmap_case)  # by its name


def fuzz(url: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Every phase and check of `schemathesis run` on the schema of a service; its notes go to a folder."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "all"]
    return subprocess.run(
        [*command, "--no-color", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "SCHEMATHESIS_HOOKS": __name__},
        capture_output=True,
        text=True,
        check=False,
    )
