"""Fills in model.json from the run and its measurements."""

import copy
import hashlib

import torch
from torch import fx

from quatserve.export.datasets import Splits
from quatserve.service.artifact import (
    Description,
    Metric,
    ModelFile,
    Parameters,
    Parity,
    Precision,
    ProbeFile,
    Resize,
    Task,
    Training,
)
from quatserve.training.loop.run import RunConfig
from quatserve.training.networks.counting import count_multiply_accumulates, count_parameters
from quatserve.training.networks.residual import Network
from quatserve.training.recipes.schema import Recipe

FILES = {Precision.FP32: "model.onnx", Precision.FP16: "model.fp16.onnx", Precision.INT8: "model.int8.onnx"}
RESIZE = {Task.CLASSIFICATION: Resize.CENTRE_SQUARE, Task.SEGMENTATION: Resize.STRETCH}
DEPTHS = {2: "shallow", 10: "deep"}
CIFAR_LICENCE = "none stated; cite Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
NON_COMMERCIAL = "CC BY-NC-SA 3.0"
LICENCES = {  # data set: (licence of the data, licence of weights trained on it)
    "cifar10": (CIFAR_LICENCE, "MIT"),
    "cifar100": (CIFAR_LICENCE, "MIT"),
    "kitti-road": (NON_COMMERCIAL, NON_COMMERCIAL),
}


def describe(
    name: str,
    version: int,
    *,
    network: Network,
    folded: fx.GraphModule,
    config: RunConfig,
    splits: Splits,
    parity: Parity,
    files: tuple[ModelFile, ...],
    metrics: tuple[Metric, ...],
    probe: bytes,
) -> Description:
    recipe, task = config.recipe, Task(network.config.task)
    return Description(
        name=name,
        version=version,
        task=task,
        summary=_summary(recipe, splits),
        network=_network(recipe),
        algebra=network.config.algebra,
        labels=splits.labels,
        height=recipe.height,
        width=recipe.width,
        resize=RESIZE[task],
        files=files,
        probe=ProbeFile(sha256=hashlib.sha256(probe).hexdigest()),
        metrics=metrics,
        parity=parity,
        parameters=count(network, folded),
        multiply_accumulates=multiply_accumulates(folded, recipe.height, recipe.width),
        training=_training(config, splits),
    )


def model_file(precision: Precision, content: bytes, tolerance: float) -> ModelFile:
    return ModelFile(
        name=FILES[precision],
        precision=precision,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        tolerance=tolerance,
    )


def count(network: Network, folded: fx.GraphModule) -> Parameters:
    total, trainable = count_parameters(network)
    return Parameters(
        total=total, trainable=trainable, folded=sum(tensor.numel() for tensor in folded.parameters())
    )


def multiply_accumulates(folded: fx.GraphModule, height: int, width: int) -> int:
    """Multiply-accumulates of one image through the graph, opening 1x1 convolutions included."""
    return count_multiply_accumulates(copy.deepcopy(folded).to(torch.float32), height, width)


def _summary(recipe: Recipe, splits: Splits) -> str:
    kind = DEPTHS.get(recipe.paper_network.depth, f"depth-{recipe.paper_network.depth}")
    network = f"{kind} {recipe.network.algebra} network"
    if recipe.dataset == "kitti-road":
        return f"Finds the road in a photo: {network} trained on {splits.dataset}"
    return f"Sorts photos into the {len(splits.labels)} classes of {splits.dataset}: {network}"


def _network(recipe: Recipe) -> str:
    config = recipe.paper_network
    parts = [
        f"residual, depth {config.depth}, width {config.width}",
        f"{config.encoding} components",
        "whitening" if config.whiten else "centring only",
    ]
    if config.dilations:
        parts.append("dilations " + " ".join(map(str, config.dilations)))
    return ", ".join(parts)


def _training(config: RunConfig, splits: Splits) -> Training:
    data, weights = LICENCES[config.recipe.dataset]
    learnt_before = {LICENCES[earlier.recipe.dataset][1] for earlier in config.sources}
    return Training(
        recipe=config.recipe.name,
        epochs=config.recipe.epochs,
        seed=config.seed,
        commit=_commit(config),
        start=begun_with(config) or None,
        teacher=taught_by(config) or None,
        dataset=splits.dataset,
        data_licence=data,
        weights_licence=NON_COMMERCIAL if NON_COMMERCIAL in learnt_before else weights,
    )


def begun_with(config: RunConfig) -> str:
    """The runs whose weights this run started from, latest first; empty if the weights were random."""
    return "; before that ".join(ancestry(config))


def ancestry(config: RunConfig) -> list[str]:
    """One line for each run whose weights this run started from, latest first."""
    return [_weights_of(earlier) for earlier in config.ancestors]


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


def _commit(config: RunConfig) -> str:
    if config.imported:
        return "trained elsewhere, imported from {file}, sha256 {sha256}".format(**config.imported)
    return "; then ".join(config.origins) if config.later else config.commit
