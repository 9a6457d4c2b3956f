"""Evaluates the finished network of a run directory, and leaves the figures and a picture in it."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from quatserve.training.data import cifar, folder, kitti, masks
from quatserve.training.data.listing import HELD_OUT, TRAINING
from quatserve.training.errors import UserError
from quatserve.training.evaluation.confusion_picture import draw_confusion
from quatserve.training.evaluation.labels import evaluate_labels
from quatserve.training.evaluation.masks import evaluate_masks
from quatserve.training.evaluation.overlay_picture import draw_overlays
from quatserve.training.evaluation.road import evaluate_road
from quatserve.training.loop.checkpoint import write_bytes
from quatserve.training.loop.prediction import Predictor, predictor
from quatserve.training.loop.run import CHECKPOINT, RunConfig, load_network
from quatserve.training.loop.sources import Source, folder_layout
from quatserve.training.recipes.schema import Recipe

EVALUATION, CONFUSION, OVERLAYS = "evaluation.json", "confusion.png", "overlays.png"


def evaluate_run(
    run: Path,
    data: Path,
    *,
    split: str | None,
    threshold: float,
    device: torch.device,
    progress: bool,
    weights: str = CHECKPOINT,
) -> dict[str, Any]:
    """Return every figure as plain data, and write them into `run`."""
    network, config = load_network(run, weights)
    recipe, predict = config.recipe, predictor(network, device)
    if recipe.dataset == "folder":
        found = _evaluate_folder(run, predict, config, data, split, progress)
    elif recipe.dataset == "masks":
        found = _evaluate_masks(run, predict, config, data, split, threshold, progress)
    elif recipe.dataset == "kitti-road":
        found = _evaluate_road(run, predict, recipe, data, split, threshold, progress)
    else:
        found = _evaluate_labels(run, predict, recipe, data, split, progress)
    report = {"recipe": recipe.name, "dataset": recipe.dataset, "weights": weights, **found}
    if config.epochs_done is not None:
        report["unfinished"] = {"epochs_done": config.epochs_done, "epochs": recipe.epochs}
    write_bytes(run / EVALUATION, (json.dumps(report, indent=2) + "\n").encode())
    return report


def labelled_split(recipe: Recipe, data: Path, split: str) -> cifar.LabelledImages:
    """The test images, those that the recipe trains on, or those that it holds out of training."""
    layout = cifar.LAYOUTS[recipe.dataset]
    if split == "test":
        return cifar.read_cifar(layout, data, "test")
    if split == "all" or (split == "held-out" and not recipe.holdout):
        raise UserError(f"{recipe.name} has no split {split!r}: use --split test or --split training")
    everything = cifar.read_cifar(layout, data, "train")
    cut = len(everything) - recipe.holdout
    return everything[:cut] if split == "training" else everything[cut:]


def road_split(recipe: Recipe, data: Path, split: str) -> tuple[kitti.Frame, ...]:
    """All frames, or the last of each category: as many as the recipe held out, or as public splits do.

    Or, for "training", those before them.
    """
    frames = kitti.list_frames(data)
    if split == "all":
        return frames
    if split == "test":
        raise UserError(f"{recipe.dataset} has no split 'test': use --split held-out, training or all")
    if split == "training":
        return kitti.split_frames(frames, recipe.holdout)[0]
    return kitti.split_frames(frames, recipe.holdout or kitti.HOLDOUT)[1]


def _evaluate_labels(
    run: Path, predict: Predictor, recipe: Recipe, data: Path, split: str | None, progress: bool
) -> dict[str, Any]:
    split = split or "test"
    names = cifar.read_label_names(cifar.LAYOUTS[recipe.dataset], data)
    return _score(run, predict, recipe, labelled_split(recipe, data, split), names, split, progress)


def _evaluate_folder(
    run: Path, predict: Predictor, config: RunConfig, data: Path, split: str | None, progress: bool
) -> dict[str, Any]:
    """The images are decoded into a directory that is removed afterwards."""
    recipe = config.recipe
    split = split or (HELD_OUT if recipe.holds_out else folder.ALL)
    if split == "test":
        raise UserError(
            f"{recipe.name} has no split 'test': use --split {HELD_OUT} or {TRAINING}, "
            f"or --split {folder.ALL} for every image of a folder of test images"
        )
    recorded, layout = Source(data, run).recorded, folder_layout(recipe)
    with tempfile.TemporaryDirectory(prefix=".evaluated-", dir=run) as cache:
        images = folder.read_part(data, recorded, split, layout, config.labels, Path(cache))
        return _score(run, predict, recipe, images, config.labels, split, progress)


def _evaluate_masks(
    run: Path,
    predict: Predictor,
    config: RunConfig,
    data: Path,
    split: str | None,
    threshold: float,
    progress: bool,
) -> dict[str, Any]:
    recipe = config.recipe
    split = split or (HELD_OUT if recipe.holds_out else folder.ALL)
    if split == "test":
        raise UserError(
            f"{recipe.name} has no split 'test': use --split {HELD_OUT}, {TRAINING} or {folder.ALL}"
        )
    if split == folder.ALL:
        names = masks.image_names(data)
    else:
        recorded = Source(data, run).recorded
        names = [entry.name for entry in recorded if entry.part == split and not entry.fault]
    result = evaluate_masks(
        predict,
        data,
        names,
        config.labels,
        height=recipe.height,
        width=recipe.width,
        threshold=threshold,
        progress=progress,
    )
    scores = result.as_json()
    title = f"{recipe.name}, {split}: mean IoU {scores['mean_iou']:.3f} over {len(names)} images, in pixels"
    draw_confusion(result.counts, result.labels, title, run / CONFUSION)
    return {"split": split, "scores": scores, "picture": CONFUSION}


def _score(
    run: Path,
    predict: Predictor,
    recipe: Recipe,
    images: cifar.LabelledImages,
    names: tuple[str, ...],
    split: str,
    progress: bool,
) -> dict[str, Any]:
    result = evaluate_labels(predict, images, progress=progress)
    title = f"{recipe.name}, {split}: error {result.error:.2%}, {result.flip_error:.2%} with flip averaging"
    draw_confusion(result.confusion, names, title, run / CONFUSION)
    return {"split": split, "scores": result.as_json(), "picture": CONFUSION}


def _evaluate_road(
    run: Path,
    predict: Predictor,
    recipe: Recipe,
    data: Path,
    split: str | None,
    threshold: float,
    progress: bool,
) -> dict[str, Any]:
    split = split or ("held-out" if recipe.holdout else "all")
    result = evaluate_road(
        predict,
        road_split(recipe, data, split),
        height=recipe.height,
        width=recipe.width,
        threshold=threshold,
        progress=progress,
    )
    if split == "held-out" and not recipe.holdout:
        split = kitti.HOLDOUT_NAME  # the network may have been trained on them
    title = f"{recipe.name}, {split}: IoU {result.frame_size.iou:.3f} over {len(result.results)} frames"
    draw_overlays(result.results, threshold, title, run / OVERLAYS)
    return {"split": split, "scores": result.as_json(), "picture": OVERLAYS}
