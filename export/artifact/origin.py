"""What is known of a network besides its weights. What nobody knows is absent, never invented."""

from dataclasses import dataclass
from pathlib import Path

from quatserve.service.artifact import Training


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Facts for model.json, and texts for the card; what is not known is empty."""

    summary: str = ""
    network: str | None = None
    algebra: str | None = None
    stem_stride: int | None = None
    training: Training | None = None
    structure: str = ""  # what kind of network it is
    history: str = ""  # how it was trained
    comparison: str = ""  # with the paper's figures
    limits: str = ""
    curves: Path | None = None  # the picture of loss and score by epoch
    finds_road: bool = False  # so that the sample street can show it


UNKNOWN = Origin()
