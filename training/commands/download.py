"""Download a data set and unpack it.

The archive is the official one; its digest is checked, and a download that broke off goes on where it
stopped. KITTI cannot be downloaded without an account: `download kitti-road --out data` says where to get
one, and nothing more.
"""

import argparse
import sys
from pathlib import Path

NAME = "download"
EXAMPLES = """examples:
  quatserve download cifar10 --out data
  quatserve download cifar100 --out data --archive cifar-100-binary.tar.gz"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", choices=("cifar10", "cifar100", "kitti-road"))
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="the directory of the data sets, --data of `fit`",
    )
    parser.add_argument("--archive", type=Path, metavar="FILE", help="an archive that is here already")
    parser.add_argument("--url", help="a mirror of the archive; the digest must be the official one")


def run(options: argparse.Namespace) -> None:
    from quatserve.training.data.download import download

    folder = download(
        options.dataset, options.out, archive=options.archive, url=options.url, progress=sys.stderr.isatty()
    )
    print(f"{options.dataset} is in {folder}: use --data {options.out}")
