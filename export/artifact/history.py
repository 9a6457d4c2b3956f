"""What a run directory tells of its network: facts for model.json, and texts for the card."""

from collections.abc import Sequence
from pathlib import Path
from string import Template

from quatserve.export.artifact.origin import Origin
from quatserve.service.artifact import Training
from quatserve.training.loop.run import CURVES, RunConfig
from quatserve.training.recipes.schema import Recipe

DEPTHS = {2: "shallow", 10: "deep"}
CIFAR_LICENCE = "none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
NON_COMMERCIAL = "CC BY-NC-SA 3.0"
LICENCES = {  # data set: (licence of the data, licence of weights trained on it)
    "cifar10": (CIFAR_LICENCE, "MIT"),
    "cifar100": (CIFAR_LICENCE, "MIT"),
    "kitti-road": (NON_COMMERCIAL, NON_COMMERCIAL),
}
PAPER_WIDTH = 32
# Table 1 of the paper: error in percent by data set, depth and algebra.
PAPER_ERRORS = {
    ("cifar10", 2): {"real": 6.82, "complex": 6.91, "quaternion": 6.77},
    ("cifar10", 10): {"real": 6.37, "complex": 5.60, "quaternion": 5.44},
    ("cifar100", 2): {"real": 32.02, "complex": 31.65, "quaternion": 30.59},
    ("cifar100", 10): {"real": 28.07, "complex": 27.09, "quaternion": 26.01},
}
ROAD_PAPER = """\
The paper prints an "IOU" of 0.827 for quaternions. By its authors' logs that is a soft Dice, on validation
frames drawn at random from the training folder. Their published weights give IoU 0.714 and soft Dice 0.833
on 241 half-size frames of KITTI, which include those they were trained on."""
NOT_IN_THE_PAPER = "The paper has no network like this one to compare with."
ROAD_LIMITS = """\
It was trained on daylight frames of one camera on one car around one German city. Night, rain, snow, other
cameras and other countries are beyond what it was tested on. Pavements and paved yards beside the road are
what it takes for road most easily. It is a demonstration, and no part of any vehicle's safety."""
STRUCTURE = """\
A network after *Deep Quaternion Networks* (Gaudet and Maida, 2018) over the $algebra numbers:
$network."""


def origin_of(run: Path, config: RunConfig, dataset: str, labels: Sequence[str]) -> Origin:
    """`dataset` by its name for people, `labels` as in model.json."""
    recipe, curves = config.recipe, run / CURVES
    return Origin(
        summary=_summary(recipe, dataset, labels),
        network=_network(recipe),
        algebra=recipe.network.algebra,
        stem_stride=recipe.paper_network.stem_stride,
        training=_training(config, dataset),
        structure=Template(STRUCTURE).substitute(algebra=recipe.network.algebra, network=_network(recipe)),
        history=_history(config),
        comparison=_paper(recipe),
        limits=ROAD_LIMITS if recipe.dataset == "kitti-road" else "",
        curves=curves if curves.is_file() else None,
        finds_road=recipe.dataset == "kitti-road",
    )


def ancestry(config: RunConfig) -> list[str]:
    """One line for each run whose weights this run started from, latest first."""
    return [_weights_of(earlier) for earlier in config.ancestors]


def begun_with(config: RunConfig) -> str:
    """The runs whose weights this run started from, latest first; empty if the weights were random."""
    return "; before that ".join(ancestry(config))


def taught_by(config: RunConfig) -> str:
    """The run of the teacher and its own ancestors; empty if the run learned from labels only."""
    if not config.teacher:
        return ""
    teacher = config.teacher.config
    before = begun_with(teacher)
    return _weights_of(teacher) + (f" (begun with {before})" if before else "")


def _weights_of(run: RunConfig) -> str:
    if run.imported:
        return "imported from {file} (sha256 {sha256})".format(**run.imported)
    commits = ", then ".join([f"commit {run.commit}", *run.later])
    taught = f" (taught by {taught_by(run)})" if run.teacher else ""
    return f"recipe {run.recipe.name}, {run.recipe.epochs} epochs, seed {run.seed}, {commits}{taught}"


def _summary(recipe: Recipe, dataset: str, labels: Sequence[str]) -> str:
    kind = DEPTHS.get(recipe.paper_network.depth, f"depth-{recipe.paper_network.depth}")
    network = f"{kind} {recipe.network.algebra} network"
    if recipe.network.task == "segmentation":
        found = ", ".join(labels[1:] or labels)
        return f"Finds the {found} in a photo: {network} trained on {dataset}"
    return f"Sorts photos into the {len(labels)} classes of {dataset}: {network}"


def _network(recipe: Recipe) -> str:
    config = recipe.paper_network
    parts = [
        f"residual, depth {config.depth}, width {config.width}",
        f"{config.encoding} components",
        "whitening" if config.whiten else "centring only",
    ]
    if config.stem_stride > 1:
        parts.append(f"stem of stride {config.stem_stride}")
    if config.dilations:
        parts.append("dilations " + " ".join(map(str, config.dilations)))
    return ", ".join(parts)


def _training(config: RunConfig, dataset: str) -> Training:
    """The facts. Of imported weights, nobody knows recipe, epochs, seed and commit."""
    data, weights = LICENCES.get(config.recipe.dataset, (config.licence or None, None))
    learnt_before = {LICENCES.get(earlier.recipe.dataset, ("", ""))[1] for earlier in config.sources}
    licences = {
        "dataset": dataset,
        "data_licence": data,
        "weights_licence": NON_COMMERCIAL if NON_COMMERCIAL in learnt_before else weights,
    }
    if config.imported:
        return Training(start=_weights_of(config), **licences)
    return Training(
        recipe=config.recipe.name,
        epochs=config.epochs_done or config.recipe.epochs,
        seed=config.seed,
        commit="; then ".join(config.origins) if config.later else config.commit,
        start=begun_with(config) or None,
        teacher=taught_by(config) or None,
        **licences,
    )


def _history(config: RunConfig) -> str:
    recipe = config.recipe
    if config.imported:
        file, digest = config.imported["file"], config.imported["sha256"]
        return f"Not here: imported from `{file}` (sha256 `{digest}`),\n{recipe.summary}."
    epochs = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs} epochs"
    begun = f"Recipe `{recipe.name}` ({recipe.summary}):\n{epochs}, batches of {recipe.batch_size}, "
    resumed = "".join(f"\nResumed with {origin}." for origin in config.later)
    unfinished = (
        "" if config.epochs_done is None else f"\n**Unfinished**: {config.epochs_done} epochs are done."
    )
    return (
        f"{begun}seed {config.seed}, {_optimiser(recipe)}, commit `{config.commit}`."
        f"{resumed}{unfinished}{_teacher(config)}{_start(config)}"
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


def _paper(recipe: Recipe) -> str:
    if recipe.dataset == "kitti-road":
        return ROAD_PAPER
    network = recipe.paper_network
    errors = PAPER_ERRORS.get((recipe.dataset, network.depth), {})
    if network.algebra not in errors or network.width != PAPER_WIDTH:
        return NOT_IN_THE_PAPER
    listed = ", ".join(f"{algebra} {error:.2f} %" for algebra, error in errors.items())
    return f"The paper, after 200 epochs, for networks of this width and depth: {listed}."
