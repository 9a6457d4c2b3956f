"""Runs schemathesis against a service, with requests that are valid beyond what the schema can say.

To the schema, any bytes are an image, any four numbers a shape and any string a model. Importing this module
registers real images for the image types, real tensors and the names of served models.
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
    """Small valid images of one format, of any size, grey or colour."""
    side = st.integers(1, 40)
    picture = st.builds(Image.new, st.sampled_from(["L", "RGB"]), st.tuples(side, side), st.integers(0, 255))
    return picture.map(lambda image: encoded(image, kind))


for media_type, kind in FORMATS.items():
    schemathesis.openapi.media_type(media_type, images(kind))


@st.composite
def tensor_cases(draw: st.DrawFn, case: Case[Any]) -> Case[Any]:
    """The same request for a model that is served, with as many numbers as its shape has."""
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
    """Run every phase and check of `schemathesis run` on a service, in a folder for its files."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "all"]
    return subprocess.run(
        [*command, "--no-color", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "SCHEMATHESIS_HOOKS": __name__},
        capture_output=True,
        text=True,
        check=False,
    )
