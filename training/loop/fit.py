"""Runs a whole training: epochs, progress, checkpoints and resuming."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quatserve.training.data import listing
from quatserve.training.errors import UserError
from quatserve.training.loop import run as runs
from quatserve.training.loop.checkpoint import read_tensors, write_tensors
from quatserve.training.loop.curves import draw_curves
from quatserve.training.loop.distillation import OnlineTeacher
from quatserve.training.loop.progress import EpochProgress
from quatserve.training.loop.ranks import Ranks
from quatserve.training.loop.sources import Source, labels, prepare, read_data
from quatserve.training.loop.trainer import Trainer
from quatserve.training.recipes.schema import Recipe, as_json


def fit(
    recipe: Recipe,
    data: Path,
    run: Path,
    *,
    seed: int,
    device: torch.device,
    compiled: bool,
    resume: bool,
    ranks: Ranks,
    start: Path | None = None,
    teacher: Path | None = None,
    cache: Path | None = None,
    licence: str = "",
) -> None:
    """Train `recipe` into the directory `run`; with `resume`, from its last finished epoch.

    It begins with random weights, or with those of the finished run `start`, as far as they fit. Where the
    recipe distils, it learns from the finished run `teacher` as well. A user's own images, whose `licence`
    goes with the run, are decoded into `cache`, or beside the run.
    """
    if recipe.batch_size % ranks.size:
        raise UserError(f"a batch of {recipe.batch_size} cannot be shared by {ranks.size} processes equally")
    resume = resume or ranks.restarted
    _check_teacher(recipe, teacher)
    config = dataclasses.replace(
        runs.new_config(recipe, seed, start, teacher), labels=labels(recipe, data), licence=licence
    )
    if resume:
        config = _with_its_start(config, run)
    ranks.on_first_rank(lambda: _admit(run, config, resume=resume))
    finished, begun = ((run / name).exists() for name in (runs.CHECKPOINT, runs.STATE))
    if resume and not ranks.agree((finished, begun)):
        raise UserError(
            f"not every process sees the files of {run}: --out must be a disk that all machines share"
        )
    if resume and finished:
        if ranks.first:
            print(f"{run} is finished: its {recipe.epochs} epochs are done", file=sys.stderr)
        return
    _check_classes(config)
    goes_on = resume and begun
    if not goes_on:
        _check_history(config)
    source = Source(data, run, cache)
    ranks.on_first_rank(lambda: prepare(recipe, source, progress=sys.stderr.isatty()))
    _check_unseen(run, [earlier for earlier in (start, teacher) if earlier])
    online = None if teacher is None else OnlineTeacher(runs.load_teacher(teacher), device, compiled=compiled)
    examples = read_data(recipe, source)
    trainer = Trainer(recipe, seed, examples, device, compiled=compiled, ranks=ranks, teacher=online)
    rows = _restore(trainer, run) if goes_on else []
    if start is not None and not goes_on:
        _begin_with(trainer, start)
    ranks.on_first_rank(lambda: _record(run, config))
    for epoch in range(len(rows), recipe.epochs):
        rows.append(_epoch(trainer, epoch, verbose=ranks.first))
        ranks.on_first_rank(lambda: _save(trainer, run, rows))
    ranks.on_first_rank(lambda: _finish(trainer, run, rows))


def _finish(trainer: Trainer, run: Path, rows: list[dict[str, Any]]) -> None:
    weights: dict[str, Tensor] = trainer.evaluated.state_dict()
    if trainer.recipe.checkpoint == "fp16":
        weights = {name: tensor.half() for name, tensor in weights.items()}
    write_tensors(run / runs.CHECKPOINT, weights, _meaning(trainer, rows))


def _with_its_start(config: runs.RunConfig, run: Path) -> runs.RunConfig:
    """A resumed run takes its start from its own config.json, so --from need not be repeated."""
    if config.start or not any((run / name).exists() for name in (runs.CHECKPOINT, runs.STATE)):
        return config
    return dataclasses.replace(config, start=runs.read_config(run).start)


def _admit(run: Path, config: runs.RunConfig, *, resume: bool) -> None:
    """Check that this run may use the directory. config.json is written later, once the data are read."""
    if not (run / runs.CONFIG).exists():
        runs.make_directory(run)
    elif not resume:
        raise UserError(f"{run} holds a run already: add --resume to go on, or name another --out")
    elif changed := runs.differences(config, runs.read_config(run)):
        raise UserError(
            f"{run} was started with another configuration ({'; '.join(changed)}): "
            "repeat its recipe, --seed, --from, --teacher and every option that changes the recipe, "
            "or name another --out"
        )


def _record(run: Path, config: runs.RunConfig) -> None:
    """Write config.json; if another version resumes the run, add its commit and versions."""
    if not all((run / name).exists() for name in (runs.CONFIG, runs.STATE)):  # no epoch is done yet
        runs.write_config(run, config)
        return
    before = runs.read_config(run)
    if config.origin != before.origins[-1]:
        print(f"{run} goes on with {config.origin}; it was begun with {before.origins[0]}", file=sys.stderr)
        runs.write_config(run, dataclasses.replace(before, later=(*before.later, config.origin)))


def _epoch(trainer: Trainer, epoch: int, *, verbose: bool) -> dict[str, Any]:
    recipe, started = trainer.recipe, time.monotonic()
    with EpochProgress(epoch, recipe.epochs, recipe.network.task, shown=verbose) as progress:
        row = {"epoch": epoch + 1, **trainer.train_epoch(epoch, progress.update)}
        row["images_per_second"] = row["images"] / (time.monotonic() - started)
        validation = trainer.validate()
        if validation is not None:
            row["validation_score"] = validation
        progress.finish(row)
    return row


def _save(trainer: Trainer, run: Path, rows: list[dict[str, Any]]) -> None:
    """Write every file of an epoch. The state comes last, because it marks the epoch as done."""
    scores = [row["validation_score"] for row in rows if "validation_score" in row]
    if scores and scores[-1] == min(scores):
        write_tensors(run / runs.BEST, trainer.evaluated.state_dict(), _meaning(trainer, rows))
    runs.write_metrics(run, rows)
    draw_curves(rows, trainer.recipe, run / runs.CURVES)
    write_tensors(run / runs.STATE, trainer.state(), {"rows": rows, "step": trainer.step})


def _check_teacher(recipe: Recipe, teacher: Path | None) -> None:
    if recipe.distil and teacher is None:
        raise UserError(f"{recipe.name} learns from a teacher: --teacher RUN names a finished run")
    if teacher is not None and not recipe.distil:
        raise UserError(f"{recipe.name} learns from no teacher: leave out --teacher, or take another recipe")


def _check_classes(config: runs.RunConfig) -> None:
    if config.teacher is None:
        return
    recipe, theirs = config.recipe, config.teacher.config.recipe
    same_labels = config.teacher.config.labels == config.labels
    if not same_labels or (theirs.dataset, theirs.network.head) != (recipe.dataset, recipe.network.head):
        raise UserError(f"{theirs.name} cannot teach {recipe.name}: it was trained for other classes")


def _check_history(config: runs.RunConfig) -> None:
    """Refuse earlier runs that saw held-out images, or whose weights do not fit the optimiser."""
    recipe = config.recipe
    for earlier in (source.recipe for source in config.sources):
        if earlier.dataset == recipe.dataset and earlier.holdout < recipe.holdout:
            raise UserError(
                f"{earlier.name} was trained on images that {recipe.name} holds out: "
                "no score on them would mean anything"
            )
    for earlier in (ancestor.recipe for ancestor in config.ancestors):
        if recipe.kernel_rate and not earlier.kernel_rate:
            raise UserError(
                f"{earlier.name} was trained without orthogonal steps, which would change the lengths of its "
                f"kernels: begin {recipe.name} with a run that takes them (kernel_rate above 0)"
            )


def _check_unseen(run: Path, earlier: list[Path]) -> None:
    """Whether an earlier run was trained on images of a user's folder that this one holds out."""
    lists = [place / listing.LISTING for place in (run, *earlier)]
    if not lists[0].is_file():
        return
    held = {
        e.sha256: e.name for e in listing.read_listing(lists[0]) if e.part == listing.HELD_OUT and e.sha256
    }
    for path in lists[1:]:
        for entry in listing.read_listing(path) if path.is_file() else ():
            if entry.part == listing.TRAINING and not entry.fault and entry.sha256 in held:
                raise UserError(
                    f"{path.parent} was trained on {held[entry.sha256]}, which this run holds out: no score "
                    "would mean anything; hold out as much as it did (--set held_share=SHARE)"
                )


def _begin_with(trainer: Trainer, start: Path) -> None:
    """Load the weights of the run `start`; without its head if that has other classes."""
    network, config = runs.load_network(start)
    theirs, ours = config.recipe.network, trainer.recipe.network
    if theirs.body != ours.body:
        raise UserError(
            f"{start} holds another network ({theirs}) than {trainer.recipe.name} trains ({ours}): "
            "--from allows other dilations, stem strides of 1 and 2, another task and other classes, no more"
        )
    weights = network.state_dict()
    if theirs.head != ours.head:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    trainer.begin_with(weights)


def _restore(trainer: Trainer, run: Path) -> list[dict[str, Any]]:
    tensors, meaning = read_tensors(run / runs.STATE)
    if strange := _differences(trainer, tensors):
        more = f", and {len(strange) - 1} more" if strange[1:] else ""
        raise UserError(
            f"{run / runs.STATE} is the state of another run ({strange[0]}{more}): "
            "put the right one in its place, or start anew with another --out"
        )
    trainer.restore(tensors, meaning["step"])
    rows: list[dict[str, Any]] = meaning["rows"]
    return rows


def _differences(trainer: Trainer, saved: dict[str, Tensor]) -> list[str]:
    """Return the reasons why a saved state does not belong to `trainer`, which has not made a step yet.

    So its own state has nothing of the optimiser, which saves its tensors under the parameters' names.
    """
    ours, parameters = trainer.state(), dict(trainer.network.named_parameters())
    reshaped = [
        f"{key} is {_shape(saved[key])} where {_shape(tensor)} is expected"
        for key, tensor in ours.items()
        if key in saved and saved[key].shape != tensor.shape
    ]
    missing = [f"{key} is missing" for key in ours if key not in saved]
    others = [key for key in saved if key not in ours]
    return reshaped + missing + [f"{k} is unknown" for k in others if k.partition(".")[2] not in parameters]


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a number"


def _meaning(trainer: Trainer, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"recipe": as_json(trainer.recipe), "seed": trainer.seed, "epoch": rows[-1]["epoch"]}
