"""How much of the session's own speed `python -m service classify` keeps, from files on disk to a table.

    python benchmarks/bulk.py            # writes docs/bulk.md

onnxruntime alone runs over images that are decoded already, in batches in memory; the command reads, decodes
and writes as well. Both take turns on the same cores, several rounds in one run; medians are reported.
Loading the model is not counted on either side.
"""

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from service.artifact import INPUT_NAME, Precision, read_description  # noqa: E402
from service.cpus import usable_cpus  # noqa: E402
from service.registry import versions_on_disk  # noqa: E402

MODEL, BATCH, LEAST = "cifar10-quaternion", 32, 0.9
RATE = re.compile(r"^(\d+) done at ([\d,]+) images/s$", re.MULTILINE)


def cifar_images(count: int) -> NDArray[np.uint8]:
    """CIFAR-10 test images, [count, 32, 32, 3]; noise, harder to decode, where the data is not there."""
    source = REPOSITORY / "data" / "cifar-10-batches-bin" / "test_batch.bin"
    if not source.exists():
        print("data/ holds no CIFAR-10: noise instead")
        return np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    records = np.fromfile(source, np.uint8, count * 3073).reshape(-1, 3073)[:, 1:]
    return np.ascontiguousarray(records.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def write_folder(images: NDArray[np.uint8], folder: Path) -> None:
    folder.mkdir()
    for index, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / f"{index:05}.png")


def raw_rate(session: ort.InferenceSession, images: NDArray[np.uint8]) -> float:
    """Images a second of onnxruntime alone."""
    session.run(None, {INPUT_NAME: images[:BATCH]})
    begun = time.perf_counter()
    for start in range(0, len(images), BATCH):
        session.run(None, {INPUT_NAME: images[start : start + BATCH]})
    return len(images) / (time.perf_counter() - begun)


def command_rate(models_dir: Path, folder: Path, count: int, out: Path) -> float:
    """Images a second of the command, as it says itself; every image has to be in its table."""
    out.unlink(missing_ok=True)
    arguments = ["classify", folder, "--out", out, "--model", MODEL, "--precision", Precision.FP32]
    ended = subprocess.run(
        [sys.executable, "-m", "service", *map(str, arguments), "--models-dir", str(models_dir)],
        cwd=REPOSITORY,
        env={key: value for key, value in os.environ.items() if not key.startswith("QUATSERVE_")},
        capture_output=True,
        text=True,
        check=False,
    )
    found = RATE.search(ended.stderr)
    if ended.returncode or found is None or len(out.read_text().splitlines()) != count + 1:
        raise SystemExit(f"the command failed:\n{ended.stderr}")
    return float(found[2].replace(",", ""))


def session_of(directory: Path) -> ort.InferenceSession:
    """onnxruntime at its best: its own defaults, on as many threads as the command may use."""
    file = read_description(directory).file(Precision.FP32)
    assert file is not None  # every artifact has one
    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_cpus()
    return ort.InferenceSession(directory / file.name, options, providers=["CPUExecutionProvider"])


def measure(options: argparse.Namespace) -> tuple[list[float], list[float]]:
    directory = options.models_dir / MODEL / str(versions_on_disk(options.models_dir)[MODEL][0])
    images = cifar_images(options.images)
    raw, command = [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "images"
        write_folder(images, folder)
        for _ in range(options.rounds):
            raw.append(raw_rate(session_of(directory), images))
            print(f"  onnxruntime: {raw[-1]:,.0f}", flush=True)
            command.append(
                command_rate(options.models_dir, folder, len(images), Path(scratch) / "results.csv")
            )
            print(f"  classify: {command[-1]:,.0f}", flush=True)
    return raw, command


def report(raw: list[float], command: list[float], options: argparse.Namespace) -> tuple[str, bool]:
    top, ours = statistics.median(raw), statistics.median(command)
    kept = ours >= LEAST * top
    mark = "yes" if kept else "**no**"
    lines = [
        "# Bulk speed", "",
        f"`python benchmarks/bulk.py` on {platform.machine()}, {usable_cpus()} processors,",
        f"onnxruntime {ort.__version__}, fp32, {options.images:,} PNG files of 32 x 32,",
        f"{options.rounds} rounds, contenders alternating, medians.", "",
        "| what | images/s | of onnxruntime | bound | kept |", "|---|---|---|---|---|",
        f"| onnxruntime alone, decoded images, batch {BATCH} | {top:,.0f} | | | |",
        f"| `python -m service classify` | {ours:,.0f} | {ours / top:.2f} | >= {LEAST} | {mark} |", "",
    ]  # fmt: skip
    return "\n".join(lines), kept


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models-dir", type=Path, default=REPOSITORY / "models")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs")
    options = parser.parse_args(arguments)
    raw, command = measure(options)
    text, kept = report(raw, command, options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "bulk.md").write_text(text)
    print(text)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
