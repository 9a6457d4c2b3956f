"""Our recipes for CIFAR: the paper's networks, taught by a wide real one, and that teacher."""

import dataclasses

from quatserve.training.networks.residual import NetworkConfig
from quatserve.training.networks.teacher import TeacherConfig
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Classification, Dataset, Recipe, named

# The last training images. A teacher sees none of the first number, so that a student's held-out images are
# unknown to it, and trials can be judged on them. A student trains on all but the last 2,000, which fit its
# temperature and judge INT8.
TEACHER_HOLDOUT = 5_000
HOLDOUT = 2_000


def taught(algebra: str, dataset: Dataset, classes: int, *, deep: bool = False) -> Recipe:
    kind = "deep" if deep else "shallow"
    return Recipe(
        name=named(dataset, algebra, "deep" if deep else ""),
        summary=f"{kind} {algebra} network on {dataset.upper()}, one long cycle, taught by {dataset}-teacher",
        dataset=dataset,
        network=NetworkConfig(algebra=algebra, classes=classes, depth=10 if deep else 2),
        epochs=200,
        batch_size=128,
        schedule=OneCycle(peak=0.1, warm_up=0.05),
        weight_decay=2e-4,
        gamma_decay=5e-4,
        kernel_rate=0.12,
        task=Classification(shift_pixels=4, flip="alternate"),
        clip_norm=5.0,
        distil=0.9,
        teacher=f"{dataset}-teacher",
        holdout=HOLDOUT,
    )


def untaught(recipe: Recipe) -> Recipe:
    """The same from labels alone: what a teacher is worth, and what compares algebras."""
    return dataclasses.replace(recipe, distil=0.0, teacher="")


def teacher(dataset: Dataset, classes: int) -> Recipe:
    return Recipe(
        name=f"{dataset}-teacher",
        summary=f"real network of two million parameters on {dataset.upper()}, in bf16, to teach the others",
        dataset=dataset,
        network=TeacherConfig(classes=classes),
        epochs=48,
        batch_size=128,
        schedule=OneCycle(peak=0.1, warm_up=0.1),
        weight_decay=5e-4,
        gamma_decay=5e-4,
        kernel_rate=0.2,
        task=Classification(shift_pixels=4, flip="alternate", erase=0.3),
        clip_norm=5.0,
        holdout=TEACHER_HOLDOUT,
        precision="bf16",
        checkpoint="fp16",
    )
