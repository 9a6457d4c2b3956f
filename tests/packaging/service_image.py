"""Builds the contents of the service image without Docker, and starts them.

`python -m tests.packaging.service_image cpu|gpu` follows the build stage in a temporary directory, then
starts the service there on each device. Without a GPU, `cuda` must refuse, and `auto` must serve on the CPU
and admit it; with one, both must serve on it. `gpu` without a GPU also asserts the reason of every refusal,
with a stand-in for the driver (gpu_install.py).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dockerfile_parse import DockerfileParser

from tests.packaging import gpu_install
from tests.packaging.running_service import READY_WITHIN_S, running

ROOT = Path(__file__).parents[2]
INSTALLED_AT = "/opt/quatserve"
HAS_GPU = Path("/dev/nvidiactl").exists()
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def steps() -> list[tuple[str, str]]:
    parsed = DockerfileParser(str(ROOT / "docker/service.Dockerfile"), cache_content=True).structure
    return [(step["instruction"], step["value"]) for step in parsed]


def only(instruction: str) -> str:
    (value,) = (value for name, value in steps() if name == instruction)
    return value


def build(runtime: str, work: Path) -> Path:
    """Follow the stage called `build`; returns the environment that the image would copy."""
    source, installed = work / "src", work / "quatserve"
    source.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "RUNTIME": runtime, "PIP_QUIET": "1"}
    stage = ""
    for instruction, value in steps():
        if instruction == "FROM":
            stage = value.partition(" AS ")[2]
        elif stage == "build" and instruction == "ENV":
            environment |= dict(pair.split("=", 1) for pair in value.split())
        elif stage == "build" and instruction == "COPY":
            *names, into = value.split()
            for name in names:
                copy(ROOT / name, source / (name if into == "./" else into))
        elif stage == "build" and instruction == "RUN":
            print(f"+ {value}", flush=True)
            command = value.replace(INSTALLED_AT, str(installed))
            subprocess.run(["sh", "-ec", command], cwd=source, env=environment, check=True)
    return installed


def copy(source: Path, target: Path) -> None:
    """What COPY does: links inside a directory stay links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def entry(installed: Path, device: str) -> list[str]:
    """The image's entry point, on the shipped models unless QUATSERVE_MODELS_DIR names others."""
    program, *arguments = json.loads(only("ENTRYPOINT"))
    models = os.environ.get("QUATSERVE_MODELS_DIR", str(ROOT / "models"))
    return [str(installed / "bin" / program), *arguments, "--device", device, "--models-dir", models]


def check_health(installed: Path, port: int) -> None:
    """The image's own health check, on our port."""
    command = only("HEALTHCHECK").partition("CMD ")[2].replace(":8000/", f":{port}/")
    _python, *arguments = json.loads(command)
    subprocess.run([installed / "bin/python", *arguments], check=True)


def check_serves(installed: Path, device: str, provider: str) -> None:
    with running(entry(installed, device), cwd=installed) as service:
        check_health(installed, service.port)
        models = service.readiness["models"]
        assert models, "no model is served"
        assert {model["provider"] for model in models} == {provider}, models
        admitted = {model["fallback_reason"] is not None for model in models}
        assert admitted == {device == "auto" and provider == CPU}, models
    print(f"--device {device} serves on {provider}: {models}", flush=True)


def check_refuses(installed: Path, device: str) -> None:
    run = subprocess.run(
        entry(installed, device), cwd=installed, capture_output=True, text=True, timeout=READY_WITHIN_S
    )
    assert run.returncode != 0
    assert f"device {device}" in run.stderr, run.stderr
    assert "Traceback" not in run.stderr, run.stderr
    print(f"--device {device} refuses: {run.stderr.splitlines()[-1]}", flush=True)


def check(runtime: str, installed: Path, work: Path) -> None:
    command = [str(installed / "bin/pip"), "list", "--format=freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.partition("==")[0] for line in listed.splitlines()}
    expected = {"cpu": "onnxruntime", "gpu": "onnxruntime-gpu"}[runtime]
    assert names & {"torch", "onnxruntime", "onnxruntime-gpu"} == {expected}

    if runtime == "gpu" and not HAS_GPU:
        gpu_install.check(installed, work)
    on_gpu = runtime == "gpu" and HAS_GPU
    check_serves(installed, "cpu", CPU)
    check_serves(installed, "auto", CUDA if on_gpu else CPU)
    if on_gpu:
        check_serves(installed, "cuda", CUDA)
    else:
        check_refuses(installed, "cuda")


def main(runtime: str) -> None:
    with tempfile.TemporaryDirectory() as work:
        installed = build(runtime, Path(work))
        size = sum(file.stat().st_size for file in installed.rglob("*") if file.is_file())
        print(f"installed: {size / 1e6:.0f} MB", flush=True)
        check(runtime, installed, Path(work))


if __name__ == "__main__":
    main(sys.argv[1])
