"""Read the road networks that the paper's authors published.

FILE is one of their HDF5 files of Keras 2, quaternion or complex. RUN becomes a run directory like those of
`fit`, for `evaluate` and for export.
"""

import argparse
from pathlib import Path

NAME = "import-keras"
EXAMPLES = """examples:
  quatserve import-keras quaternion_weights.hd5 --out runs/published
  quatserve evaluate runs/published --data data --split all"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the authors' HDF5 file")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="run directory to write")


def run(options: argparse.Namespace) -> None:
    from quatserve.training.interop.keras_import import import_keras
    from quatserve.training.loop.run import load_network
    from quatserve.training.networks.counting import count_parameters

    recipe = import_keras(options.file, options.out)
    total, trainable = count_parameters(load_network(options.out)[0])
    print(f"{recipe.name}: {total:,} parameters, {trainable:,} of them trainable, in {options.out}")
