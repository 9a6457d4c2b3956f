"""A run directory: the configuration, the history and the state of a run.

config.json             recipe, seed, versions, commits; the runs that it began with and learned from
metrics.jsonl           one line per epoch
state.safetensors       everything needed to resume
checkpoint.safetensors  the final weights (their moving average, where the recipe keeps one)
best.safetensors        the best weights, only where the recipe holds out a split
curves.png              loss and score by epoch
"""

import dataclasses
import hashlib
import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quatserve.training.errors import UserError
from quatserve.training.loop.checkpoint import read_tensors, write_bytes
from quatserve.training.networks.build import AnyNetwork, build_network
from quatserve.training.recipes.schema import Recipe, as_json, from_json

CONFIG, METRICS, STATE = "config.json", "metrics.jsonl", "state.safetensors"
CHECKPOINT, BEST, CURVES = "checkpoint.safetensors", "best.safetensors", "curves.png"


@dataclass(frozen=True)
class RunConfig:
    recipe: Recipe
    seed: int
    commit: str
    versions: dict[str, str]
    later: tuple[str, ...] = ()  # origins of the versions that resumed it
    imported: dict[str, str] | None = None  # file and digest of weights that were trained elsewhere
    start: "FinishedRun | None" = None  # whose weights it began with; None: random weights
    teacher: "FinishedRun | None" = None  # whose answers it learned from
    labels: tuple[str, ...] = ()  # the classes of a user's own images
    licence: str = ""  # of a user's own images
    epochs_done: int | None = None  # set for an unfinished run; not stored in config.json

    def as_json(self) -> dict[str, Any]:
        return {
            "recipe": as_json(self.recipe),
            "seed": self.seed,
            "commit": self.commit,
            "versions": self.versions,
            **({"later": list(self.later)} if self.later else {}),
            **({"imported": self.imported} if self.imported else {}),
            **({"start": self.start.as_json()} if self.start else {}),
            **({"teacher": self.teacher.as_json()} if self.teacher else {}),
            **({"labels": list(self.labels)} if self.labels else {}),
            **({"licence": self.licence} if self.licence else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "RunConfig":
        fields = data | {"recipe": from_json(data["recipe"]), "later": tuple(data.get("later", ()))}
        fields["labels"] = tuple(data.get("labels", ()))
        for name in {"start", "teacher"} & data.keys():
            fields[name] = FinishedRun(cls.from_json(data[name]["config"]), data[name]["sha256"])
        return cls(**fields)

    @property
    def origin(self) -> str:
        """The commit and versions that a run was begun with, as one line."""
        return ", ".join([f"commit {self.commit}", *(f"{k} {v}" for k, v in self.versions.items())])

    @property
    def origins(self) -> tuple[str, ...]:
        return (self.origin, *self.later)

    @property
    def ancestors(self) -> Iterator["RunConfig"]:
        """The runs whose weights it began with, latest first."""
        if self.start:
            yield self.start.config
            yield from self.start.config.ancestors

    @property
    def sources(self) -> Iterator["RunConfig"]:
        """Every run that it took weights or answers from, directly or through another run."""
        for source in (self.start, self.teacher):
            if source:
                yield source.config
                yield from source.config.sources


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, identified by its configuration and its weights, because its directory may move."""

    config: RunConfig
    sha256: str  # of its checkpoint

    def as_json(self) -> dict[str, Any]:
        return {"config": self.config.as_json(), "sha256": self.sha256}


def new_config(
    recipe: Recipe, seed: int, start: Path | None = None, teacher: Path | None = None
) -> RunConfig:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return RunConfig(
        recipe,
        seed,
        current_commit(),
        versions,
        start=None if start is None else _finished(start, "--from"),
        teacher=None if teacher is None else _finished(teacher, "--teacher"),
    )


def _finished(run: Path, option: str) -> FinishedRun:
    config, checkpoint = read_config(run), run / CHECKPOINT
    if not checkpoint.is_file():
        raise UserError(f"{checkpoint} is missing: {option} takes a finished run")
    return FinishedRun(config, hashlib.sha256(checkpoint.read_bytes()).hexdigest())


def make_directory(run: Path) -> None:
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{run} cannot be made ({error.strerror}): name another --out") from error


def write_config(run: Path, config: RunConfig) -> None:
    write_bytes(run / CONFIG, (json.dumps(config.as_json(), indent=2) + "\n").encode())


def read_config(run: Path) -> RunConfig:
    path = run / CONFIG
    try:
        return RunConfig.from_json(json.loads(path.read_text()))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): is {run} a run directory?") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a configuration of this version ({error})") from error


def differences(ours: RunConfig, theirs: RunConfig) -> list[str]:
    """List the recipe fields, seed, start and teacher in which two runs differ, with both values."""
    mine, other = _identity(ours), _identity(theirs)
    return [f"{key}: {other.get(key)!r} -> {mine[key]!r}" for key in mine if mine[key] != other.get(key)]


def _identity(config: RunConfig) -> dict[str, Any]:
    """Everything that distinguishes one run from another; the summary does not."""
    fields = as_json(config.recipe) | {
        "seed": config.seed,
        "from": config.start and config.start.sha256,
        "teacher": config.teacher and config.teacher.sha256,
        "labels": config.labels,
    }
    return {name: value for name, value in fields.items() if name != "summary"}


def read_metrics(run: Path) -> list[dict[str, Any]]:
    path = run / METRICS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_metrics(run: Path, rows: list[dict[str, Any]]) -> None:
    write_bytes(run / METRICS, "".join(json.dumps(row) + "\n" for row in rows).encode())


def load_network(run: Path, name: str = CHECKPOINT) -> tuple[AnyNetwork, RunConfig]:
    """Load the network of a run in evaluation mode; of an unfinished run, its average so far."""
    config = read_config(run)
    if name == CHECKPOINT and not (run / CHECKPOINT).is_file() and (run / STATE).is_file():
        return _load_unfinished(run, config)
    if not (run / name).is_file():
        never = name == BEST and not config.recipe.holds_out
        reason = "its recipe holds out nothing to choose them by" if never else "no epoch of the run is done"
        raise UserError(f"{run / name} is missing: {reason}")
    tensors, meaning = read_tensors(run / name)
    with _this_version(run / name):
        trained = dataclasses.replace(config, recipe=from_json(meaning["recipe"]), seed=meaning["seed"])
        if changed := differences(config, trained):
            raise UserError(f"{run / name} is of another configuration than {CONFIG} ({'; '.join(changed)})")
        return _with_weights(config, tensors), config


def _load_unfinished(run: Path, config: RunConfig) -> tuple[AnyNetwork, RunConfig]:
    tensors, meaning = read_tensors(run / STATE)
    prefix = "average." if config.recipe.ema_decay else "network."
    weights = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
    with _this_version(run / STATE):
        done = meaning["rows"][-1]["epoch"]
        return _with_weights(config, weights), dataclasses.replace(config, epochs_done=done)


def _with_weights(config: RunConfig, weights: dict[str, Tensor]) -> AnyNetwork:
    network = build_network(config.recipe.network)
    network.load_state_dict(weights)
    return network.eval()


@contextmanager
def _this_version(path: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not a network of this version ({reason})") from error


def load_teacher(run: Path) -> AnyNetwork:
    """Load the network of a finished run and check that its numbers are finite."""
    network, _ = load_network(run)
    for name, tensor in network.state_dict().items():
        if not tensor.isfinite().all():
            raise UserError(f"{run}: {name} holds numbers that are not finite: the teacher is damaged")
    return network


def find_teacher(recipe: Recipe) -> Path:
    """Find the run of the recipe's teacher in `runs/`, here or in this clone."""
    places = [Path("runs", recipe.teacher), Path(__file__).resolve().parents[2] / "runs" / recipe.teacher]
    for place in places:
        if (place / CHECKPOINT).is_file():
            return place
    raise UserError(
        f"{recipe.name} learns from a run of {recipe.teacher}, and {places[0]} holds none: name one with "
        f"--teacher, or train it: quatserve fit {recipe.teacher} --data DIR --out {places[0]}"
    )


def current_commit() -> str:
    """Return the commit of this package, with a mark if its files were modified."""
    try:
        here = Path(__file__)
        _git(here.parent, "ls-files", "--error-unmatch", here.name)  # fails in another repository
        commit = _git(here.parent, "rev-parse", "--short=12", "HEAD")
        return commit + ("-modified" if _git(here.parent, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(where: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=where, check=True, capture_output=True, text=True)
    return done.stdout.strip()
