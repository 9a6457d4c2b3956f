"""Writes the card of an artifact, the README that a person reads before using the model."""

from collections.abc import Sequence
from string import Template

from quatserve.export.artifact.describe import ancestry, taught_by
from quatserve.export.artifact.overlay import OVERLAY
from quatserve.service.artifact import Description, Metric, Precision, Task
from quatserve.training.loop.run import CURVES, RunConfig
from quatserve.training.recipes.schema import Recipe

PAPER_WIDTH = 32
# Table 1 of the paper: error in percent by data set, depth and algebra.
PAPER_ERRORS = {
    ("cifar10", 2): {"real": 6.82, "complex": 6.91, "quaternion": 6.77},
    ("cifar10", 10): {"real": 6.37, "complex": 5.60, "quaternion": 5.44},
    ("cifar100", 2): {"real": 32.02, "complex": 31.65, "quaternion": 30.59},
    ("cifar100", 10): {"real": 28.07, "complex": 27.09, "quaternion": 26.01},
}
METRIC_TITLES = {
    "error": "error",
    "iou": "IoU",
    "soft_dice": "soft Dice",
    "max_f": "MaxF",
    "agreement": "agreement with fp32",
}
CARD = Template("""# $name, version $version

$summary.

## What it is

A network after *Deep Quaternion Networks* (Gaudet and Maida, 2018) over the $algebra numbers:
$network.
$total parameters as the paper counts them, running statistics included ($trainable trainable). Folded
into plain convolutions it is $folded numbers and $macs million multiply-accumulates an image.

Input `images`: uint8 [batch, $height, $width, 3], RGB. Output `$output`: $output_text.
Normalisation is inside the graph. Images of another size: $resize.

| file | precision | size | probe tolerance |
|---|---|---|---|
$files

The fp32 file agrees with the trained network, computed in float64, within $difference$levels on $images
real and synthetic images in batches of $batches.

## How it was trained

$history
$curves
## What it scores

Measured through the files themselves with onnxruntime. $choice

| score | data | images | $precisions |
|---|---|---|$rules|
$metrics

$paper
$overlay
## Limits

$limits

## Licence

Data: $dataset, $data_licence. Weights: $weights_licence.$noncommercial
""")
LIMITS = {
    Task.CLASSIFICATION: """\
It knows the $count classes of $dataset and nothing else: every picture, a blank one too, gets one of them.
It sees 32 x 32 pixels; larger pictures lose all detail beyond that. Probabilities are not calibrated.""",
    Task.SEGMENTATION: """\
It was trained on daylight frames of one camera on one car around one German city. Night, rain, snow, other
cameras and other countries are beyond what it was tested on. Pavements and paved yards beside the road are
what it takes for road most easily. It is a demonstration, and no part of any vehicle's safety.""",
}
TEST_SCORE = """\
No test image was trained on, and what fp16 and int8
lose on them does not decide whether those files may ship."""
HELD_OUT_SCORE = """\
These images were kept out of training; what fp16 and int8
lose on them decides whether those files may ship."""
OUTPUT_TEXTS = {
    Task.CLASSIFICATION: "float32 [batch, classes]",
    Task.SEGMENTATION: "uint8 [batch, height, width], round(255 p)",
}
RESIZES = {
    Task.CLASSIFICATION: "the centre square, then antialiased bilinear",
    Task.SEGMENTATION: "antialiased bilinear, aspect\nnot kept; the map is enlarged again to that size",
}
ROAD_PAPER = """\
The paper prints an "IOU" of 0.827 for quaternions. By its authors' logs that is a soft Dice, on validation
frames drawn at random from the training folder. Their published weights give IoU 0.714 and soft Dice 0.833
on 241 half-size frames of KITTI, which include those they were trained on."""


def write_card(model: Description, config: RunConfig, pictures: Sequence[str]) -> str:
    precisions = [file.precision for file in model.files]
    return CARD.substitute(
        name=model.name,
        version=model.version,
        summary=model.summary,
        algebra=model.algebra,
        network=model.network,
        total=f"{model.parameters.total:,}",
        trainable=f"{model.parameters.trainable:,}",
        folded=f"{model.parameters.folded:,}",
        macs=f"{model.multiply_accumulates / 1e6:,.0f}",
        height=model.height,
        width=model.width,
        output=model.output_name,
        output_text=OUTPUT_TEXTS[model.task],
        resize=RESIZES[model.task],
        files="\n".join(_file_rows(model)),
        difference=f"{model.parity.max_difference:.2g}",
        levels=_levels(model),
        images=model.parity.images,
        batches=", ".join(map(str, model.parity.batches)),
        history=_history(config),
        curves=f"\n![loss and score by epoch]({CURVES})\n" if CURVES in pictures else "",
        choice=_choice({metric.split for metric in model.metrics}),
        precisions=" | ".join(precisions),
        rules="---|" * (len(precisions) - 1) + "---",
        metrics="\n".join(_metric_rows(model, precisions)),
        paper=_paper(model, config.recipe),
        overlay=f"\n![the road found in a rendered street]({OVERLAY})\n" if OVERLAY in pictures else "",
        limits=Template(LIMITS[model.task]).substitute(
            count=len(model.labels), dataset=model.training.dataset
        ),
        dataset=model.training.dataset,
        data_licence=model.training.data_licence,
        weights_licence=model.training.weights_licence,
        noncommercial=" Not for commercial use." if "NC" in model.training.weights_licence else "",
    )


def _history(config: RunConfig) -> str:
    recipe = config.recipe
    if config.imported:
        file, digest = config.imported["file"], config.imported["sha256"]
        return f"Not here: imported from `{file}` (sha256 `{digest}`),\n{recipe.summary}."
    epochs = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs} epochs"
    begun = f"Recipe `{recipe.name}` ({recipe.summary}):\n{epochs}, batches of {recipe.batch_size}, "
    resumed = "".join(f"\nResumed with {origin}." for origin in config.later)
    return (
        f"{begun}seed {config.seed}, {_optimiser(recipe)}, commit `{config.commit}`."
        f"{resumed}{_teacher(config)}{_start(config)}"
    )


def _start(config: RunConfig) -> str:
    if not config.start:
        return ""
    same_head = config.start.config.recipe.network.head == config.recipe.network.head
    which = "the weights" if same_head else "all weights but the head's"
    runs = ancestry(config)
    before = ", and each of these with those of the one below it" if runs[1:] else ""
    listed = "".join(f"\n- {run}" for run in runs)
    return f"\n\nIt began with {which} of another run{before}:\n{listed}"


def _teacher(config: RunConfig) -> str:
    if not config.teacher:
        return ""
    share = f"{100 * config.recipe.distil:g} %"
    algebra = config.teacher.config.recipe.network.algebra
    return (
        f"\nFor {share} of its loss it learned not from labels but from what another run's {algebra} network "
        f"answers about the training images\n({taught_by(config)})."
    )


def _optimiser(recipe: Recipe) -> str:
    kernels = (
        f"; kernels by orthogonal steps of {recipe.kernel_rate:g} times that" if recipe.kernel_rate else ""
    )
    return f"SGD at up to {recipe.schedule.highest:.2g}{kernels}"


def _choice(splits: set[str]) -> str:
    """State which scores decided whether fp16 and int8 ship."""
    if "test" in splits:
        return TEST_SCORE
    return HELD_OUT_SCORE if splits - {"training"} else ""


def _file_rows(model: Description) -> list[str]:
    unit = " of 255 levels" if model.task is Task.SEGMENTATION else ""
    return [
        f"| `{f.name}` | {f.precision} | {f.bytes / 1e6:.2f} MB | {f.tolerance:g}{unit} |"
        for f in model.files
    ]


def _levels(model: Description) -> str:
    levels = model.parity.max_levels
    return "" if levels is None else f" ({levels} of 255 levels after rounding)"


def _metric_rows(model: Description, precisions: Sequence[Precision]) -> list[str]:
    """One row per score and split, one column per precision."""
    values = {(m.name, m.split, m.precision): m for m in model.metrics}
    rows = dict.fromkeys((m.name, m.split) for m in model.metrics)
    return [
        f"| {METRIC_TITLES[name]} | {model.training.dataset}, {split} | {_count(model, name, split):,} | "
        + " | ".join(_shown(values.get((name, split, p))) for p in precisions)
        + " |"
        for name, split in rows
    ]


def _count(model: Description, name: str, split: str) -> int:
    return next(m.samples for m in model.metrics if (m.name, m.split) == (name, split))


def _shown(metric: Metric | None) -> str:
    if metric is None:
        return ""
    return f"{metric.value:.2%}" if metric.name in ("error", "agreement") else f"{metric.value:.4f}"


def _paper(model: Description, recipe: Recipe) -> str:
    if model.task is Task.SEGMENTATION:
        return ROAD_PAPER
    errors = PAPER_ERRORS.get((recipe.dataset, recipe.paper_network.depth), {})
    if model.algebra not in errors or recipe.paper_network.width != PAPER_WIDTH:
        return "The paper has no network like this one to compare with."
    listed = ", ".join(f"{algebra} {error:.2f} %" for algebra, error in errors.items())
    return f"The paper, after 200 epochs, for networks of this width and depth: {listed}."
