"""Recipes for a user's own photographs: folders of classes, and images with masks.

The number of classes is the folder's. `quatserve fit` changes size, width, depth, epochs, batch and rate.
"""

from quatserve.training.networks.residual import NetworkConfig
from quatserve.training.recipes.road import ROAD_DILATIONS
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Classification, Recipe, Segmentation, named

HELD_SHARE = 0.15
PHOTO_SIZE = 128  # behind a stem of stride 4, a photograph costs about what a CIFAR image does
MASK_SIZE = 96


def classes(algebra: str) -> Recipe:
    return Recipe(
        name=named("folder", algebra),
        summary=f"your photographs, one folder for each class: shallow {algebra} network, strided stem",
        dataset="folder",
        network=NetworkConfig(algebra=algebra, stem_stride=4),
        epochs=60,
        batch_size=64,
        schedule=OneCycle(peak=0.07, warm_up=0.1),
        weight_decay=2e-4,
        gamma_decay=5e-4,
        kernel_rate=0.12,
        task=Classification(
            crop=0.35, margin=1.25, shift_pixels=0, flip="alternate", colour=0.2, balance="weights"
        ),
        clip_norm=5.0,
        held_share=HELD_SHARE,
        height=PHOTO_SIZE,
        width=PHOTO_SIZE,
    )


def masks(algebra: str) -> Recipe:
    return Recipe(
        name=named("masks", algebra),
        summary=f"your images with masks of one or several classes: dilated {algebra} network",
        dataset="masks",
        network=NetworkConfig(algebra=algebra, task="segmentation", dilations=ROAD_DILATIONS),
        epochs=40,
        batch_size=8,
        schedule=OneCycle(peak=0.1),
        weight_decay=2e-4,
        kernel_rate=0.1,
        task=Segmentation(scale=0.35, shift=0.1, colour=0.3),
        ema_decay=0.99,
        held_share=HELD_SHARE,
        height=MASK_SIZE,
        width=MASK_SIZE,
    )
