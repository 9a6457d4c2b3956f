"""What is to be built, checked before any work is done."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from quatserve.export.artifact.origin import Origin
from quatserve.export.artifact.source import check_finite
from quatserve.export.datasets import Splits, splits_of
from quatserve.export.interface import Channels, Interface
from quatserve.service.artifact import OUTPUT_NAMES, Colour, Resize, Task
from quatserve.training.errors import UserError
from quatserve.training.loop.prediction import Images

RESIZE = {Task.CLASSIFICATION: Resize.CENTRE_SQUARE, Task.SEGMENTATION: Resize.STRETCH}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A network with everything that its artifact states."""

    network: nn.Module
    interface: Interface
    labels: tuple[str, ...]
    resize: Resize
    splits: Splits
    origin: Origin
    threshold: float | None  # of a segmentation network of one class
    palette: tuple[Colour, ...]  # of one of several classes

    @property
    def task(self) -> Task:
        return self.interface.task

    @property
    def output(self) -> str:
        return OUTPUT_NAMES[self.task]

    @property
    def size(self) -> tuple[int, int]:
        return self.interface.height, self.interface.width


def plan_of(
    network: nn.Module,
    *,
    labels: Sequence[str],
    size: int | tuple[int, int],
    task: str,
    mean: Channels,
    std: Channels,
    resize: str | None,
    calibration: Images | None,
    threshold: float,
    palette: Sequence[Colour] | None,
    splits: Splits | None,
    origin: Origin,
) -> Plan:
    """The plan of these arguments of `build`; UserError if one of them is bad or they do not go together."""
    interface = _interface(task, size, mean, std)
    if resize is not None and resize not in set(Resize):
        raise UserError(f"resize {resize!r} is unknown: use {' or '.join(Resize)}")
    if not 0 < threshold < 1:
        raise UserError(f"threshold {threshold:g} is not a probability: use one between 0 and 1")
    _check_labels(labels)
    _check_calibration(calibration, interface)
    _check_network(network, interface, labels)
    maps = len(labels) if interface.task is Task.SEGMENTATION else 0
    if palette is not None and len(palette) != maps:
        raise UserError(f"palette has {len(palette)} colours for {maps} maps: give each map one")
    return Plan(
        network=network,
        interface=interface,
        labels=tuple(labels),
        resize=RESIZE[interface.task] if resize is None else Resize(resize),
        splits=splits or splits_of(calibration, interface.height, interface.width, tuple(labels)),
        origin=origin,
        threshold=threshold if maps == 1 else None,
        palette=tuple(palette or default_palette(maps)) if maps > 1 else (),
    )


def _interface(task: str, size: int | tuple[int, int], mean: Channels, std: Channels) -> Interface:
    if task not in set(Task):
        raise UserError(f"task {task!r} is unknown: use {' or '.join(Task)}")
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise UserError(f"size {height} x {width} is too small: use 1 x 1 or more")
    for name, values in (("mean", mean), ("std", std)):
        if len([*values]) != 3 or not all(0 <= value <= 1 for value in values):
            raise UserError(f"{name} {values} is not three numbers within [0, 1], of pixels divided by 255")
    if not all(std):
        raise UserError(f"std {std} holds a zero, by which pixels would be divided: use positive numbers")
    return Interface(task=Task(task), height=height, width=width, mean=mean, std=std)


def _check_labels(labels: Sequence[str]) -> None:
    if not labels or len(set(labels)) != len(labels):
        raise UserError(f"{len(labels)} labels, {len(set(labels))} of them distinct: give each class its own")
    if bad := [label for label in labels if not label.strip() or len(label.splitlines()) != 1]:
        raise UserError(f"label {bad[0]!r} is not one line of text: name the class")


def _check_calibration(images: Images | None, interface: Interface) -> None:
    if images is None:
        return
    expected = (interface.height, interface.width, 3)
    if images.dtype != np.uint8 or images.shape[1:] != expected or len(images) < 2:
        raise UserError(
            f"calibration is {images.dtype} {list(images.shape)}: give 2 or more images as uint8 "
            f"[count, {', '.join(map(str, expected))}], a hundred or more if you can"
        )


@torch.no_grad()
def _check_network(network: nn.Module, interface: Interface, labels: Sequence[str]) -> None:
    """Run the network once: its output must have the contract's shape, and a channel for each label."""
    check_finite(network)
    height, width = interface.height, interface.width
    parameter = next(network.parameters(), torch.empty(0))
    try:
        found = network(torch.zeros(1, 3, height, width, dtype=parameter.dtype, device=parameter.device))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the network fails on an image of {height} x {width} ({reason}): give its size"
        ) from error
    space = (height, width) if interface.task is Task.SEGMENTATION else ()
    if not isinstance(found, torch.Tensor) or found.ndim != 2 + len(space):
        kind = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        wanted = "[1, maps, height, width]" if space else "[1, classes]"
        raise UserError(f"the network returns {kind} for one image: {interface.task} needs {wanted}")
    if found.shape[2:] != space:
        raise UserError(
            f"the network returns maps of {found.shape[2]} x {found.shape[3]} for an image of "
            f"{height} x {width}: they must have the image's size; give one that its strides divide"
        )
    if found.shape[1] != len(labels):
        raise UserError(
            f"the network returns {found.shape[1]} classes, and {len(labels)} labels are given "
            f"({', '.join(labels)}): name each class"
        )


def default_palette(count: int) -> tuple[Colour, ...]:
    """The colours of PASCAL VOC: black first, and neighbours far apart."""
    return tuple(_colour(index) for index in range(count))


def _colour(index: int) -> Colour:
    """Bits 0, 1, 2 of the index are the highest of red, green and blue, bits 3, 4, 5 the next, and so on."""
    channels = [
        sum((index >> (3 * bit + channel) & 1) << (7 - bit) for bit in range(8)) for channel in range(3)
    ]
    return channels[0], channels[1], channels[2]
