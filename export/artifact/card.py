"""Writes the card of an artifact, the README that a person reads before using the model.

A section of which nothing is known is left out.
"""

from collections.abc import Collection, Sequence
from string import Template

from quatserve.export.artifact.origin import Origin
from quatserve.export.artifact.overlay import OVERLAY
from quatserve.service.artifact import Calibration, Description, Metric, Precision, Resize, Task, Training
from quatserve.training.loop.run import CURVES

METRIC_TITLES = {
    "error": "error",
    "iou": "IoU",
    "soft_dice": "soft Dice",
    "max_f": "MaxF",
    "agreement": "agreement with fp32",
}
WHAT = Template("""\
## What it is

$structure$total parameters, running statistics included ($trainable trainable). Folded into plain
layers it is $folded numbers and $macs million multiply-accumulates per image.

Input `images`: uint8 [batch, $height, $width, 3], RGB. Output `$output`: $output_text.
Normalisation is inside the graph. Images of another size: $resize.

| file | precision | size | probe tolerance |
|---|---|---|---|
$files

The fp32 file agrees with the network, computed in float64: logits within $difference, the largest being
$scale$levels, on $images images in batches of $batches.""")
SCORES = Template("""\
## What it scores

Measured through the files themselves with onnxruntime.$choice

| score | data | images | $precisions |
|---|---|---|$rules|
$metrics""")
CALIBRATED = Template("""\
Its probabilities are calibrated by a temperature of $temperature: on $where ($samples images) the expected
calibration error is $after, and was $before.""")
CLASSIFIER_LIMITS = Template("""\
It knows its $count classes and nothing else: every picture, a blank one too, gets one of them.
It sees $height x $width pixels; larger pictures lose all detail beyond that.$calibration""")
NOT_CALIBRATED = " Its probabilities are not calibrated."
TEST_SCORE = """ No test image was trained on, and what fp16 and int8
lose on them does not decide whether those files may ship."""
HELD_OUT_SCORE = """ These images were kept out of training; what fp16 and int8
lose on them decides whether those files may ship."""
RESIZES = {
    Resize.CENTRE_SQUARE: "the centre square, then antialiased bilinear",
    Resize.STRETCH: "antialiased bilinear, aspect not kept",
}
ENLARGED = "; maps are enlarged again to that size"


def write_card(model: Description, origin: Origin, pictures: Collection[str]) -> str:
    precisions = [file.precision for file in model.files]
    sections = [
        f"# {model.name}, version {model.version}\n\n{model.summary}.",
        _what(model, origin),
        _history(origin, pictures),
        _scores(model, precisions),
        _calibration(model.calibration),
        origin.comparison,
        f"![the road found in a rendered street]({OVERLAY})" if OVERLAY in pictures else "",
        _limits(model, origin),
        _licence(model.training),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _what(model: Description, origin: Origin) -> str:
    parity = model.parity
    return WHAT.substitute(
        structure=f"{origin.structure}\n" if origin.structure else "",
        total=f"{model.parameters.total:,}",
        trainable=f"{model.parameters.trainable:,}",
        folded=f"{model.parameters.folded:,}",
        macs=f"{model.multiply_accumulates / 1e6:,.0f}",
        height=model.height,
        width=model.width,
        output=model.output_name,
        output_text=_output(model),
        resize=RESIZES[model.resize] + (ENLARGED if model.task is Task.SEGMENTATION else ""),
        files="\n".join(_file_rows(model)),
        difference=f"{parity.max_difference:.2g}",
        scale=f"{parity.max_logit:.3g}",
        levels="" if parity.max_levels is None else f", and maps within {parity.max_levels} of 255 levels",
        images=parity.images,
        batches=", ".join(map(str, parity.batches)),
    )


def _output(model: Description) -> str:
    if model.task is Task.CLASSIFICATION:
        return "float32 [batch, classes]"
    names = "" if len(model.labels) == 1 else f"; classes: {', '.join(model.labels)}"
    return f"uint8 [batch, classes, height, width],\nround(255 p){names}"


def _history(origin: Origin, pictures: Collection[str]) -> str:
    curves = f"\n\n![loss and score by epoch]({CURVES})" if CURVES in pictures else ""
    return f"## How it was trained\n\n{origin.history}{curves}" if origin.history else ""


def _scores(model: Description, precisions: Sequence[Precision]) -> str:
    if not model.metrics:
        return ""
    return SCORES.substitute(
        choice=_choice({metric.split for metric in model.metrics}),
        precisions=" | ".join(precisions),
        rules="---|" * (len(precisions) - 1) + "---",
        metrics="\n".join(_metric_rows(model, precisions)),
    )


def _choice(splits: set[str]) -> str:
    """State which scores decided whether fp16 and int8 ship."""
    if "test" in splits:
        return TEST_SCORE
    return HELD_OUT_SCORE if any(split.startswith(("last-", "held-out")) for split in splits) else ""


def _file_rows(model: Description) -> list[str]:
    unit = " of 255 levels" if model.task is Task.SEGMENTATION else ""
    return [
        f"| `{f.name}` | {f.precision} | {f.bytes / 1e6:.2f} MB | {f.tolerance:g}{unit} |"
        for f in model.files
    ]


def _metric_rows(model: Description, precisions: Sequence[Precision]) -> list[str]:
    """One row per score and split, one column per precision."""
    values = {(m.name, m.split, m.precision): m for m in model.metrics}
    first = {(m.name, m.split): m for m in reversed(model.metrics)}
    order = dict.fromkeys((m.name, m.split) for m in model.metrics)
    return [
        f"| {METRIC_TITLES[name]} | {_where(first[name, split])} | {first[name, split].samples:,} | "
        + " | ".join(_shown(values.get((name, split, p))) for p in precisions)
        + " |"
        for name, split in order
    ]


def _where(metric: Metric | Calibration) -> str:
    return f"{metric.dataset}, {metric.split}" if metric.dataset else f"{metric.split} images"


def _shown(metric: Metric | None) -> str:
    if metric is None:
        return ""
    return f"{metric.value:.2%}" if metric.name in ("error", "agreement") else f"{metric.value:.4f}"


def _calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return ""
    return CALIBRATED.substitute(
        temperature=f"{calibration.temperature:.3g}",
        where=_where(calibration),
        samples=f"{calibration.samples:,}",
        before=f"{calibration.error_before:.2%}",
        after=f"{calibration.error_after:.2%}",
    )


def _limits(model: Description, origin: Origin) -> str:
    limits = origin.limits
    if model.task is Task.CLASSIFICATION:
        known = model.training is not None and model.calibration is None
        general = CLASSIFIER_LIMITS.substitute(
            count=len(model.labels),
            height=model.height,
            width=model.width,
            calibration=NOT_CALIBRATED if known else "",
        )
        limits = f"{general}\n{limits}".rstrip()
    return f"## Limits\n\n{limits}" if limits else ""


def _licence(training: Training | None) -> str:
    if training is None or not (training.data_licence or training.weights_licence):
        return ""
    stated = [
        f"Data: {training.dataset}, {training.data_licence}." if training.data_licence else "",
        f"Weights: {training.weights_licence}." if training.weights_licence else "",
        "Not for commercial use." if "NC" in (training.weights_licence or "") else "",
    ]
    return "## Licence\n\n" + " ".join(part for part in stated if part)
