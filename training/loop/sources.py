"""From the name of a data set to the data of a run. A new data set is a file in `data/` and a line here."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quatserve.training.data import cifar, folder, kitti, listing, masks
from quatserve.training.loop.batches import Data, Examples, check_enough
from quatserve.training.loop.labelled import LabelledData
from quatserve.training.loop.pixels import PixelData
from quatserve.training.recipes.schema import Classification, Recipe

CACHE = ".image-cache"  # beside the run directories, which share it


@dataclass(frozen=True)
class Source:
    """Where a run finds its images, and where it leaves what it makes of them."""

    data: Path
    run: Path | None = None  # holds the list of a user's images
    cache: Path | None = None  # of decoded images, where not beside the run

    @property
    def cached(self) -> Path:
        return self.cache or (self.run.parent if self.run else self.data) / CACHE

    @property
    def recorded(self) -> tuple[listing.Entry, ...]:
        """The list of a run that was begun before."""
        path = self.run and self.run / listing.LISTING
        return listing.read_listing(path) if path and path.is_file() else ()


def read_data(recipe: Recipe, source: Source) -> Data:
    return READERS[recipe.dataset](recipe, source)


def prepare(recipe: Recipe, source: Source, *, progress: bool) -> None:
    """Decode a user's images where that is to be done once for all ranks, and record which they are."""
    if recipe.dataset == "folder":
        entries = _read_folder(recipe, source, progress=progress).entries
    elif recipe.dataset == "masks":
        entries = _read_masks(recipe, source, progress=progress)[0]
    else:
        return
    assert source.run is not None
    listing.write_listing(source.run / listing.LISTING, entries)
    listing.report_skipped(entries)


def adapted(recipe: Recipe, data: Path) -> Recipe:
    """The recipe for the classes of a user's images."""
    names, network = labels(recipe, data), recipe.network
    if recipe.dataset == "folder":
        network = dataclasses.replace(network, classes=len(names))
    elif recipe.dataset == "masks":  # of several classes, background is one
        network = dataclasses.replace(recipe.paper_network, maps=len(names) + (len(names) > 1))
    return dataclasses.replace(recipe, network=network)


def labels(recipe: Recipe, data: Path) -> tuple[str, ...]:
    """The classes of a user's images; a built-in data set knows its own."""
    read = {"folder": folder.class_names, "masks": masks.class_names}.get(recipe.dataset)
    return read(data) if read else ()


def _cifar(recipe: Recipe, source: Source) -> Data:
    everything = cifar.read_cifar(cifar.LAYOUTS[recipe.dataset], source.data, "train")
    cut = len(everything) - recipe.holdout
    return LabelledData(recipe, _labelled(everything[:cut]), _labelled(everything[cut:]))


def _folder(recipe: Recipe, source: Source) -> Data:
    images = _read_folder(recipe, source)
    return LabelledData(recipe, _labelled(images.train), _labelled(images.held))


def _road(recipe: Recipe, source: Source) -> Data:
    train, held = kitti.split_frames(kitti.list_frames(source.data), recipe.holdout)
    check_enough(len(train), recipe)
    return PixelData(recipe, _framed(train, recipe), _framed(held, recipe) if held else None)


def _read_folder(recipe: Recipe, source: Source, *, progress: bool = False) -> folder.FolderImages:
    return folder.read_folder(
        source.data, folder_layout(recipe), source.cached, recorded=source.recorded, progress=progress
    )


def _masks(recipe: Recipe, source: Source) -> Data:
    _, train, held = _read_masks(recipe, source)
    parts = [Examples(part.images, part.targets) if len(part) else None for part in (train, held)]
    check_enough(len(train), recipe)
    assert parts[0] is not None
    return PixelData(recipe, parts[0], parts[1])


def _read_masks(
    recipe: Recipe, source: Source, *, progress: bool = False
) -> tuple[tuple[listing.Entry, ...], masks.MaskedImages, masks.MaskedImages]:
    layout = masks.MasksLayout(
        height=recipe.height, width=recipe.width, holdout=recipe.holdout, held_share=recipe.held_share
    )
    return masks.read_pairs(source.data, layout, source.cached, recorded=source.recorded, progress=progress)


def folder_layout(recipe: Recipe) -> folder.FolderLayout:
    assert isinstance(recipe.task, Classification)
    return folder.FolderLayout(
        height=recipe.height,
        width=recipe.width,
        margin=recipe.task.margin,
        holdout=recipe.holdout,
        held_share=recipe.held_share,
    )


def _labelled(images: cifar.LabelledImages) -> Examples:
    return Examples(images.images, images.labels)


def _framed(frames: tuple[kitti.Frame, ...], recipe: Recipe) -> Examples:
    road = kitti.read_road(frames, recipe.height, recipe.width)
    return Examples(road.images, road.targets)


READERS: dict[str, Callable[[Recipe, Source], Data]] = {
    "cifar10": _cifar,
    "cifar100": _cifar,
    "folder": _folder,
    "masks": _masks,
    "kitti-road": _road,
}
