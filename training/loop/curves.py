"""Draws loss and score by epoch."""

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from quatserve.training.loop.checkpoint import write_bytes
from quatserve.training.loop.progress import SCORE_NAMES
from quatserve.training.recipes.schema import Recipe


def draw_curves(rows: list[dict[str, Any]], recipe: Recipe, path: Path) -> None:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in rows]
    marker = "o" if len(rows) == 1 else "-"  # a line needs two epochs
    left.plot(epochs, [row["loss"] for row in rows], marker, color="tab:blue")
    left.set(xlabel="epoch", ylabel="training loss", title=recipe.name)
    right.plot(
        epochs, [100 * row["score"] for row in rows], marker, label="training, augmented", color="tab:blue"
    )
    held = [(row["epoch"], 100 * row["validation_score"]) for row in rows if "validation_score" in row]
    if held:
        weights = ", moving average" if recipe.ema_decay else ""
        right.plot(*zip(*held, strict=True), marker, label=f"held out{weights}", color="tab:orange")
    right.set(xlabel="epoch", ylabel=f"{SCORE_NAMES[recipe.network.task]} (%)")
    right.legend()
    for axes in (left, right):
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    write_bytes(path, picture.getvalue())
