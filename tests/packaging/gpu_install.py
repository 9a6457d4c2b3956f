"""What `make check-gpu-install` asserts of the real onnxruntime-gpu, with a GPU that is none.

The wheel and NVIDIA's libraries are real; the driver is a stand-in of a few lines, and for some checks so is
the CUDA runtime. What runs on a GPU is not shown here: docs/gpu-host.md lists it.
"""

import json
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from quatserve.service.engine.cuda.causes import CUDA_MAJOR
from quatserve.service.engine.cuda.driver import CAPABILITIES
from quatserve.service.engine.cuda.kernels import CUDA_KERNELS
from tests.packaging.stand_in.build import StandIn, build

ROOT = Path(__file__).parents[2]
CLASSIFIER = ROOT / "models/cifar10-quaternion/1"
FAT_BINARY, ELF, PTX = b"\x50\xed\x55\xba", 2, 1


class Installed:
    """The environment that was installed, and the stand-in that is put before it."""

    def __init__(self, environment: Path, work: Path) -> None:
        self._python = environment / "bin/python"
        (self.packages,) = environment.glob("lib/python3*/site-packages")
        self.provider = self.packages / "onnxruntime/capi/libonnxruntime_providers_cuda.so"
        self.stand_in: StandIn = build(work, self.provider)

    def run(self, *command: str, libraries: tuple[Path, ...] = (), **answers: int) -> str:
        """The last line of what a process in the environment prints, wherever it prints it."""
        run = subprocess.run(
            [self._python, *command],
            env=os.environ | self.stand_in.environment(*libraries, **answers),
            cwd=ROOT / "tests",  # away from the sources: what is installed is meant
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return (run.stdout.strip().splitlines() or [f"exit code {run.returncode}, without a word"])[-1]

    def inside(self, *command: str, libraries: tuple[Path, ...], **answers: int) -> str:
        return self.run(
            str(ROOT / "tests/packaging/stand_in/inside.py"), *command, libraries=libraries, **answers
        )

    def refusal(self, libraries: tuple[Path, ...] = (), *flags: str, **answers: int) -> str:
        """What `quatserve serve --device cuda` ends with."""
        serve = ("-m", "quatserve", "serve", "--device", "cuda", "--models-dir", str(ROOT / "models"))
        return self.run(*serve, "--max-batch", "1", *flags, libraries=libraries, **answers)


@contextmanager
def removed(file: Path) -> Iterator[None]:
    aside = file.rename(file.with_suffix(".aside"))
    try:
        yield
    finally:
        aside.rename(file)


def check_reasons(installed: Installed) -> None:
    """Each refusal says what is the matter and what to do, in its last line."""
    driver, runtime, cudnn = (
        (installed.stand_in.driver,),
        (installed.stand_in.driver, installed.stand_in.runtime),
        (installed.stand_in.driver, installed.stand_in.runtime, installed.stand_in.cudnn),
    )
    expected = [
        ((), {}, "no NVIDIA driver is visible.*--gpus all.*libcuda.so.1"),
        (driver, {"cuda": 12080}, r"driver is too old for CUDA 13: install driver 580.*supports CUDA 12\.8"),
        (driver, {"init": 803}, "the driver was updated.*reboot the host"),
        (driver, {"init": 999}, "the driver cannot start CUDA.*reboot the host"),
        (driver, {"count": 0}, "the driver shows no GPU.*--gpus all"),
        (driver, {"capability": 70}, r"no code for this GPU's compute capability.*Stand-in GPU has 7\.0"),
        # From here on the texts are onnxruntime's own.
        (driver, {}, r"driver is too old for CUDA 13.*\(CUDA failure 36: API call is not supported"),
        (runtime, {}, r"cuDNN failed.*\(CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED"),
        (cudnn, {"malloc": 2}, "the GPU's memory is full.*lower max_batch.*Failed to allocate memory"),
        (
            cudnn,
            {"launch": 209},
            r"no code for this GPU's compute capability.*\(CUDA error cudaErrorNoKernel",
        ),
        (cudnn, {"launch": 719}, r"the GPU or its context is lost.*\(CUDA error cudaErrorLaunchFailure"),
    ]
    for libraries, answers, reason in expected:
        said = installed.refusal(libraries, **answers)
        assert re.search(f"^error: device cuda: .*{reason}", said), (libraries, answers, said)
        print(f"refused with the reason: {said[:150]}", flush=True)

    said = installed.refusal(cudnn, "--gpu-memory-bytes", "1000")
    assert re.search(r"memory is full, or gpu_memory_bytes too small.*Available memory of", said), said
    print(f"refused with the reason: {said[:150]}", flush=True)

    for library in ("cu13/lib/libcurand.so.10", "cudnn/lib/libcudnn.so.9"):
        file = installed.packages / "nvidia" / library
        with removed(file):
            said = installed.refusal(driver)
        assert re.search(rf"library is missing.*quatserve\[gpu\].*{file.name}: cannot open", said), said
        print(f"refused without {file.name}: {said[:150]}", flush=True)


def check_libraries(installed: Installed) -> None:
    """All that the provider links to is there, and cuDNN, which it loads by name, tells its version."""
    said = installed.inside("libraries", libraries=(installed.stand_in.driver,))
    pins = (ROOT / "constraints.txt").read_text()
    pinned = re.search(r"^nvidia-cudnn-cu13==(\d+\.\d+\.\d+)", pins, re.MULTILINE)
    assert pinned is not None
    assert said == json.dumps(pinned[1]), said
    print(f"cuDNN {said} answers", flush=True)


def check_sessions(installed: Installed) -> None:
    """The real provider takes our options and has a kernel for every operator; INT8 is refused by name."""
    stand_in = installed.stand_in
    libraries = (stand_in.driver, stand_in.runtime, stand_in.cudnn)
    opened = installed.inside("sessions", str(ROOT / "models"), libraries=libraries)
    files = [*ROOT.glob("models/*/*/model.onnx"), *ROOT.glob("models/*/*/model.fp16.onnx")]
    assert len(json.loads(opened)) == 2 * len(files), opened
    print(f"sessions open with every operator on CUDA: {opened}", flush=True)
    said = installed.inside("load", str(CLASSIFIER), "int8", libraries=libraries)
    assert "int8 does not run on CUDA" in said, said


def check_kernels(installed: Installed, work: Path) -> None:
    """The table of operators with a CUDA kernel holds for the wheel, and INT8 has operators without one."""
    stand_in = installed.stand_in
    files = {str(write_operator(name, work)): name for name in sorted(CUDA_KERNELS)}
    int8 = str(CLASSIFIER / "model.int8.onnx")
    said = installed.inside(
        "operators", *files, int8, libraries=(stand_in.driver, stand_in.runtime, stand_in.cudnn)
    )
    left = json.loads(said)
    assert left.pop(int8) == ["DequantizeLinear"], said
    assert left == {file: [] for file in files}, said
    print(f"CUDA has kernels for {', '.join(files.values())}; not for DequantizeLinear of int32", flush=True)


def write_operator(name: str, work: Path) -> Path:
    """A graph of one operator, on feature maps of floats."""
    image, more = [1, 4, 8, 8], [4, 4, 3, 3]
    shapes = {
        "Conv": [image, more],
        "ConvTranspose": [image, more],
        "BatchNormalization": [image, *[[4]] * 4],
    }
    shapes |= {"Gemm": [[1, 4], [4, 4]], "MatMul": [[1, 4], [4, 4]], "Flatten": [image]}
    pairs = {"Add", "Concat", "Div", "Max", "Min", "Mul", "Sub"}
    inputs = shapes.get(name, [image, image] if name in pairs else [image])
    attributes: dict[str, dict[str, Any]] = {
        "Cast": {"to": TensorProto.FLOAT16},
        "Concat": {"axis": 1},
        "AveragePool": {"kernel_shape": [2, 2]},
        "MaxPool": {"kernel_shape": [2, 2]},
        "Split": {"num_outputs": 2, "axis": 1},
    }
    constants = {
        "Gather": [[0, 1]],
        "Reshape": [[4, 64]],
        "Squeeze": [[0]],
        "Unsqueeze": [[0]],
        "ReduceMean": [[2, 3]],
        "Slice": [[0], [2], [1]],
    }
    values = [helper.make_tensor_value_info(f"in{i}", TensorProto.FLOAT, s) for i, s in enumerate(inputs)]
    fixed = [
        helper.make_tensor(f"fixed{i}", TensorProto.INT64, [len(numbers)], numbers)
        for i, numbers in enumerate(constants.get(name, []))
    ]
    names = [*(value.name for value in values), *(tensor.name for tensor in fixed)]
    if name == "Resize":
        fixed = [helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 2, 2])]
        names += ["", "scales"]
    outputs = ["out", "rest"] if name == "Split" else ["out"]
    node = helper.make_node(name, names, outputs, **attributes.get(name, {}))
    out = [helper.make_empty_tensor_value_info(output) for output in outputs]
    graph = helper.make_graph([node], name, values, out, fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file = work / f"{name}.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model, strict_mode=True), file)
    return file


def check_capabilities(installed: Installed) -> None:
    """The wheel, the driver's check and docs/gpu-host.md name the same GPUs, and the same CUDA."""
    kinds = set(code_objects(installed.provider.read_bytes()))
    assert {kind for kind, _ in kinds} == {ELF}, f"kinds of code {kinds}: with PTX more GPUs would do"
    assert sorted((a // 10, a % 10) for _, a in kinds) == sorted(CAPABILITIES), kinds
    page = (ROOT / "docs/gpu-host.md").read_text()
    documented = re.findall(r"^\| (\d+)\.(\d+) \|", page, re.MULTILINE)
    assert [(int(major), int(minor)) for major, minor in documented] == list(CAPABILITIES), documented
    built = (installed.packages / "onnxruntime/capi/build_and_package_info.py").read_text()
    assert f"cuda_version = '{CUDA_MAJOR}." in built, built
    print(f"the wheel has code for {CAPABILITIES}, and CUDA {CUDA_MAJOR}", flush=True)


def code_objects(library: bytes) -> Iterator[tuple[int, int]]:
    """(kind, compute capability times ten) of each code object in the library's fat binaries."""
    at = library.find(FAT_BINARY)
    while at >= 0:
        version, header, size = struct.unpack_from("<HHQ", library, at + 4)
        if (version, header) == (1, 16):
            entry, end = at + header, at + header + size
            while entry < end:
                kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", library, entry)
                yield kind, struct.unpack_from("<I", library, entry + 28)[0]
                entry += entry_header + entry_size
        at = library.find(FAT_BINARY, at + 4)


def check(environment: Path, work: Path) -> None:
    installed = Installed(environment, work)
    check_capabilities(installed)
    check_libraries(installed)
    check_sessions(installed)
    check_kernels(installed, work)
    check_reasons(installed)
