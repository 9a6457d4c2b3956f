"""docs/serving.md and docs/serving.png, from measured values alone: section -> figure -> rounds."""

from pathlib import Path

import numpy as np

from benchmarks.speed.figures import Figures, Row, at_least, at_most, table
from quatserve.service.settings import Settings

CLASSIFY = {"classify fp32": "fp32", "classify int8": "INT8"}
SEGMENT = {"segment fp32": "fp32", "segment int8": "INT8"}
OVERLOAD = "overload"
RATES = {
    "onnxruntime": "#888888",
    "service, raw body": "#3f7fd9",
    "service, form": "#3f7fd9",
    "LitServe, form": "#d98c3f",
    "service, PNG": "#3f7fd9",
    "service, JPEG": "#3f7fd9",
}


def classify_rows(figures: Figures, name: str) -> list[Row]:
    """fp32 is held to the bounds; INT8 stands beside it."""
    bound = name == "fp32"
    rows = [
        Row(f"{name}: {who}", figures.of(who), "images/s", digits=0) for who in RATES if who in figures.values
    ]
    for who, least in (("service, raw body", 0.65), ("service, form", 0.60)):
        target = at_least(least, f">= {least:.2f}") if bound else None
        rows.append(Row(f"{name}: {who} / onnxruntime", figures.ratios(who, "onnxruntime"), bound=target))
    if "LitServe, form" in figures.values:
        ratios = figures.ratios("service, form", "LitServe, form")
        rows.append(Row(f"{name}: service, form / LitServe, form", ratios, bound=at_least(2.0, ">= 2")))
    own, one = "onnxruntime, one image", "service, one connection"
    rows += [Row(f"{name}: {who}", figures.of(who), "ms") for who in (own, one)]
    target = at_most(1.2, "<= 1.2 ms") if bound else None
    return [*rows, Row(f"{name}: one connection - one image", figures.differences(one, own), "ms", target)]


def segment_rows(figures: Figures, name: str) -> list[Row]:
    rows = [
        Row(f"/segment {name}: {who}", figures.of(who), "images/s", digits=1)
        for who in RATES
        if who in figures.values
    ]
    for who in ("service, PNG", "service, JPEG"):
        target = at_least(0.80, ">= 0.80") if name == "fp32" else None
        ratios = figures.ratios(who, "onnxruntime")
        rows.append(Row(f"/segment {name}: {who} / onnxruntime", ratios, bound=target))
    return rows


def overload_rows(figures: Figures) -> list[Row]:
    limit_ms = 1000 * Settings().queue_timeout_s + 2 * float(np.median(figures.of("batch, ms")))
    within = at_most(limit_ms, f"<= {limit_ms:,.0f} ms: queue timeout + 2 batches")
    return [
        Row("overload: connections", figures.of("connections"), digits=0),
        Row("overload: accepted", figures.of("accepted"), "requests", digits=0),
        Row("overload: refused with 503", figures.of("refused"), "requests", digits=0),
        Row("overload: accepted, p99", figures.of("accepted p99, ms"), "ms", within, 0),
        Row("overload: refused, p99", figures.of("refused p99, ms"), "ms", at_most(250, "<= 250 ms"), 0),
        Row("overload: other answers", figures.of("others"), "", at_most(0, "none"), 0),
        Row("overload: memory, after / before", figures.of("memory"), "", at_most(1.05, "<= 1.05")),
    ]


def rows_of(sections: dict[str, Figures]) -> list[Row]:
    rows: list[Row] = []
    for key, name in CLASSIFY.items():
        rows += classify_rows(sections[key], name) if sections.get(key, Figures()).values else []
    for key, name in SEGMENT.items():
        rows += segment_rows(sections[key], name) if sections.get(key, Figures()).values else []
    return rows + (overload_rows(sections[OVERLOAD]) if OVERLOAD in sections else [])


def document(sections: dict[str, Figures], how: str) -> str:
    absent = [f"{key}: the artifact has no such file." for key, found in sections.items() if not found.values]
    lines = [
        "# LoadedModel speed",
        "",
        how,
        "",
        *table(rows_of(sections)),
        "",
        *absent,
        "",
        "![images a second](serving.png)",
    ]
    return "\n".join(lines) + "\n"


def plot(sections: dict[str, Figures], path: Path) -> None:
    """Images a second of each contender; the whiskers are the quartiles."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [key for key in (*CLASSIFY, *SEGMENT) if sections.get(key, Figures()).values]
    if not shown:
        return
    figure, axes = plt.subplots(len(shown), squeeze=False, figsize=(8, 1.9 * len(shown)))
    for axis, key in zip(axes[:, 0], shown, strict=True):
        names = [name for name in RATES if name in sections[key].values]
        low, middle, high = np.percentile([sections[key].of(name) for name in names], [25, 50, 75], axis=1)
        whiskers = [middle - low, high - middle]
        bars = axis.barh(names, middle, xerr=whiskers, color=[RATES[name] for name in names], capsize=3)
        axis.bar_label(bars, fmt="{:,.0f}" if middle.max() > 100 else "{:,.1f}", padding=6)
        axis.invert_yaxis()
        axis.set_title(key, loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("images a second")
    figure.tight_layout()
    figure.savefig(path, dpi=140)
