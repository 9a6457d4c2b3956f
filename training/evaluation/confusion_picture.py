"""Draws a confusion matrix: right answers in green, mistakes in red."""

import io
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from quatserve.training.loop.checkpoint import write_bytes

FEW_CLASSES = 20  # with more, cells are too small for numbers


def draw_confusion(confusion: NDArray[np.int64], names: tuple[str, ...], title: str, path: Path) -> None:
    """Rows are true classes, in percent of their images; columns are predicted classes."""
    shares = 100 * confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    few = len(names) <= FEW_CLASSES
    figure = Figure(
        figsize=(8, 7.2) if few else (17, 16), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.15)
    )
    axes = figure.subplots()
    _draw_cells(figure, axes, shares)
    if few:
        _write_numbers(axes, shares)
    size = 10 if few else 6
    axes.set_xticks(range(len(names)), names, rotation=45 if few else 90, ha="right" if few else "center")
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0, labelsize=size)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(title, fontsize=11 if few else 16, pad=12)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_bytes(path, picture.getvalue())


def _draw_cells(figure: Figure, axes: Axes, shares: NDArray[np.float64]) -> None:
    """Two scales, so that a mistake of one percent still shows beside ninety that are right."""
    diagonal = np.eye(len(shares), dtype=bool)
    right, wrong = np.ma.masked_array(shares, ~diagonal), np.ma.masked_array(shares, diagonal)
    axes.imshow(right, cmap="Greens", vmin=0, vmax=130)
    mistakes = axes.imshow(wrong, cmap="OrRd", vmin=0, vmax=max(float(wrong.max()), 1))
    figure.colorbar(mistakes, ax=axes, shrink=0.6, label="mistakes, % of the true class")


def _write_numbers(axes: Axes, shares: NDArray[np.float64]) -> None:
    strongest = max(shares[~np.eye(len(shares), dtype=bool)].max(), 1)
    for (row, column), share in np.ndenumerate(shares):
        light = share > 60 if row == column else share > 0.6 * strongest
        if row == column or share >= 0.05:
            axes.text(
                column,
                row,
                f"{share:.1f}",
                ha="center",
                va="center",
                fontsize=9,
                weight="bold" if row == column else "normal",
                color="white" if light else "#222222",
            )
