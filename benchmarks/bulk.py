"""How much of the session's own speed `quatserve classify` keeps, from files on disk to a table.

    python benchmarks/bulk.py            # writes docs/bulk.md

onnxruntime alone runs over images that are decoded already, in batches in memory: one run on all cores, as is
usual, and one on each, as the command has it. The command reads, decodes and writes as well. They take turns
on the same cores, several rounds in one run, with the same spinning. Loading is counted on no side.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.speed.figures import Figures, Row, at_least, machine, table  # noqa: E402
from benchmarks.speed.pictures import cifar_images  # noqa: E402
from benchmarks.speed.raw import model_file, raw_session  # noqa: E402
from benchmarks.speed.undisturbed import undisturbed  # noqa: E402
from quatserve.service.artifact import INPUT_NAME, Precision  # noqa: E402
from quatserve.service.engine.cpus import usable_cpus  # noqa: E402
from quatserve.service.engine.versions import read_repository  # noqa: E402

MODEL, BATCH, LEAST = "cifar10-quaternion", 32, 0.9
TOGETHER, ABREAST = "onnxruntime, one run on all cores", "onnxruntime, one run on each core"
COMMAND = "`quatserve classify`"
RATE = re.compile(r"^(\d+) done at ([\d,]+) images/s$", re.MULTILINE)


def write_folder(images: NDArray[np.uint8], folder: Path) -> None:
    folder.mkdir()
    for index, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / f"{index:05}.png")


def raw_rate(model: Path, images: NDArray[np.uint8], threads: int, abreast: int) -> float:
    """Images a second of onnxruntime alone, `abreast` runs at a time on so many threads each."""
    session = raw_session(model, threads)
    session.run(None, {INPUT_NAME: images[:BATCH]})
    batches = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    with ThreadPoolExecutor(abreast) as pool:
        begun = time.perf_counter()
        for _ in pool.map(lambda batch: session.run(None, {INPUT_NAME: batch}), batches):
            pass
        return len(images) / (time.perf_counter() - begun)


def command_rate(models_dir: Path, folder: Path, count: int, out: Path) -> float:
    """Images a second of the command, as it says itself; every image has to be in its table."""
    out.unlink(missing_ok=True)
    arguments = ["classify", folder, "--out", out, "--model", MODEL, "--precision", Precision.FP32]
    ended = subprocess.run(
        [sys.executable, "-m", "quatserve", *map(str, arguments), "--models-dir", str(models_dir)],
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


def measure(options: argparse.Namespace) -> Figures:
    model = model_file(
        options.models_dir / MODEL / str(read_repository(options.models_dir).versions[MODEL][0]),
        Precision.FP32,
    )
    assert model is not None  # every artifact has one
    images, figures = cifar_images(options.images), Figures()
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch) / "images", Path(scratch) / "results.csv"
        write_folder(images, folder)
        for _ in range(options.rounds):
            figures.add(TOGETHER, undisturbed(lambda: raw_rate(model, images, usable_cpus(), 1)))
            figures.add(ABREAST, undisturbed(lambda: raw_rate(model, images, 1, usable_cpus())))
            command = partial(command_rate, options.models_dir, folder, len(images), out)
            figures.add(COMMAND, undisturbed(command))
    return figures


def rows_of(figures: Figures) -> list[Row]:
    rates = [Row(name, figures.of(name), "images/s", digits=0) for name in (TOGETHER, ABREAST, COMMAND)]
    target = at_least(LEAST, f">= {LEAST}")
    return rates + [
        Row(f"the command / {name}", figures.ratios(COMMAND, name), bound=target)
        for name in (TOGETHER, ABREAST)
    ]


def document(rows: list[Row], options: argparse.Namespace) -> str:
    how = (
        f"`python benchmarks/bulk.py` on {machine()}; fp32, {options.images:,} PNG files of 32 x 32,"
        f" {options.rounds} rounds, contenders alternating, batches of {BATCH}, the same spinning;"
        " onnxruntime alone has decoded images in memory. The ratio is taken round by round."
    )
    return "\n".join(["# Bulk speed", "", how, "", *table(rows)]) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models-dir", type=Path, default=REPOSITORY / "models")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs")
    options = parser.parse_args(arguments)
    rows = rows_of(measure(options))
    text = document(rows, options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "bulk.md").write_text(text)
    print(text)
    return 0 if all(row.kept is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
