"""Measure the network of a run; of an unfinished one, its average so far.

Classification: the error on the test set (of your own images: on those held out), with and without averaging
over mirror images, and the picture confusion.png. Road: IoU, soft Dice and the figures of the KITTI
benchmark, pooled over all valid pixels, at the network's size and at the frames' size, and the picture
overlays.png. Images with masks: the IoU of every class at the images' own size, the worst images by name, and
confusion.png. Pictures go into RUN, with the figures in evaluation.json. Maps are upsampled to the frames'
size as the service upsamples them.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from quatserve.training.commands.arguments import (
    chosen_device,
    data_argument,
    device_argument,
    fraction,
    json_argument,
)

NAME = "evaluate"
EXAMPLES = """examples:
  quatserve evaluate runs/mine --data data
  quatserve evaluate runs/road --data data --split all --json
  quatserve evaluate runs/photos --data photos
  quatserve evaluate runs/photos --data other-photos --split all"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="a directory that `fit` wrote")
    data_argument(parser)
    parser.add_argument(
        "--split",
        choices=("test", "held-out", "training", "all"),
        help="CIFAR: test or held-out; KITTI: held-out or all; your own images: held-out as the run recorded "
        "them, or all of any such folder; every data set: training, to see how well it knows what it was "
        "trained on; default: what was not trained on; for imported weights, where that is unknown, all "
        "frames",
    )
    parser.add_argument(
        "--weights",
        choices=("final", "best"),
        default="final",
        help="best: those with the best held-out score, where the recipe holds out a split; default: final",
    )
    parser.add_argument(
        "--threshold", type=fraction, default=0.5, metavar="P", help="road where p >= P; default: 0.5"
    )
    device_argument(parser)
    json_argument(parser)


def run(options: argparse.Namespace) -> None:
    from quatserve.training.evaluation.report import evaluate_run
    from quatserve.training.loop.run import BEST, CHECKPOINT

    report = evaluate_run(
        options.run_directory,
        options.data,
        split=options.split,
        threshold=options.threshold,
        device=chosen_device(options.device),
        progress=sys.stderr.isatty(),
        weights=BEST if options.weights == "best" else CHECKPOINT,
    )
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join([*_lines(report), f"  picture: {options.run_directory / report['picture']}"]))


def _lines(report: dict[str, Any]) -> list[str]:
    """A report for people."""
    scores = report["scores"]
    title = f"{report['recipe']} on {report['dataset']}, {report['split']}"
    if unfinished := report.get("unfinished"):
        title += f", unfinished: {unfinished['epochs_done']} of {unfinished['epochs']} epochs"
    if "error" in scores:
        return [
            f"{title}: {scores['images']:,} images",
            f"  error                      {scores['error']:.2%}",
            f"  error with flip averaging  {scores['flip_error']:.2%}",
        ]
    if "mean_iou" in scores:
        ious = {name: "none" if iou is None else f"{iou:.4f}" for name, iou in scores["iou"].items()}
        return [
            f"{title}: {scores['images']:,} images, mean IoU {scores['mean_iou']:.4f}",
            *(f"  {name:28} {iou:>12}" for name, iou in ious.items()),
        ]
    return [f"{title}: {scores['frames']} frames", *_road_lines(scores)]


ROAD_TITLES = {
    "iou": "IoU",
    "soft_dice": "soft Dice",
    "max_f": "MaxF",
    "average_precision": "AP (11 points)",
    "precision": "precision at MaxF",
    "recall": "recall at MaxF",
    "fpr": "false-positive rate at MaxF",
    "fnr": "false-negative rate at MaxF",
}


def _road_lines(scores: dict[str, Any]) -> list[str]:
    small, full = scores["network_size"], scores["frame_size"]
    return [
        f"  {'':28} {'network size':>12} {'frame size':>12}",
        *(f"  {title:28} {small[key]:12.4f} {full[key]:12.4f}" for key, title in ROAD_TITLES.items()),
    ]
