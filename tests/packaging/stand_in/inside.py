"""Runs in the environment that `make check-gpu-install` has made; prints what it finds as JSON.

`inside.py sessions MODELS_DIR` opens every graph on the stand-in with every set of options that we use;
`inside.py operators FILE...` says where onnxruntime puts the operators of small graphs;
`inside.py libraries` loads the CUDA libraries and asks cuDNN for its version;
`inside.py load DIRECTORY PRECISION` loads a model with `cuda`, and prints the reason of its refusal.
"""

import json
import sys
from pathlib import Path
from typing import Any

import onnxruntime as ort

from quatserve.service.artifact import Precision, read_description
from quatserve.service.engine.cuda.libraries import cudnn_version
from quatserve.service.engine.cuda.session import create, provider_options, require_cuda
from quatserve.service.engine.load import load_model
from quatserve.service.engine.session import CPU, CUDA
from quatserve.service.errors import DeviceUnavailableError
from quatserve.service.settings import Device, PrecisionChoice, Settings


def sessions(models_dir: str) -> list[str]:
    """Each opens with all of its operators on CUDA, or raises."""
    require_cuda()
    opened = []
    for path in sorted(Path(models_dir).glob("*/*/model.json")):
        description = read_description(path.parent)
        for file in description.files:
            if file.precision is Precision.INT8:
                continue
            for cuda_graphs in (False, True):
                options = provider_options(file.precision, 1 << 30, cuda_graphs=cuda_graphs)
                create((path.parent / file.name).read_bytes(), options)
                opened.append(f"{description.name} {file.precision} cuda_graphs={cuda_graphs}")
    return opened


def operators(*files: str) -> dict[str, list[str]]:
    """File -> the operators that CUDA has no kernel for."""
    require_cuda()
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = {}
    for file in files:
        session = ort.InferenceSession(file, options, providers=[CUDA, CPU])
        assert session.get_providers()[0] == CUDA
        parts = session.get_provider_graph_assignment_info()
        left = {node.op_type for part in parts if part.ep_name != CUDA for node in part.get_nodes()}
        found[file] = sorted(left)
    return found


def libraries() -> str:
    require_cuda()
    return cudnn_version()


def load(directory: str, precision: str) -> str:
    settings = Settings(device=Device.CUDA, precision=PrecisionChoice(precision), max_batch=1)
    try:
        load_model(Path(directory), settings)
    except DeviceUnavailableError as error:
        return str(error)
    return "loaded"


if __name__ == "__main__":
    commands: dict[str, Any] = {f.__name__: f for f in (sessions, operators, libraries, load)}
    command, *arguments = sys.argv[1:]
    found = commands[command](*arguments)
    print(json.dumps(found))
