"""Our recipes for CIFAR: the paper's networks in fewer epochs, and what makes them better."""

import dataclasses

from quatserve.training.networks.residual import NetworkConfig
from quatserve.training.recipes.schedule import OneCycle
from quatserve.training.recipes.schema import Augmentation, Dataset, Recipe, named

# Small crops first: three quarters of the work for the same number of epochs.
GROWING_CROPS = ((0.0, 24), (0.4, 28), (0.74, 32))


def fast(algebra: str, dataset: Dataset, classes: int, *, deep: bool = False, holdout: int = 0) -> Recipe:
    network = NetworkConfig(algebra=algebra, classes=classes, depth=10 if deep else 2)
    kind = "deep" if deep else "shallow"
    held = f", the last {holdout:,} training images held out" if holdout else ""
    return Recipe(
        name=named(dataset, algebra, "deep" if deep else "", "holdout" if holdout else ""),
        summary=f"{kind} {algebra} network on {dataset.upper()}, one cycle{held}",
        dataset=dataset,
        network=network,
        epochs=40,
        batch_size=128,
        schedule=OneCycle(peak=0.2),
        weight_decay=2e-4,
        kernel_rate=0.06,
        augmentation=Augmentation(crops=GROWING_CROPS),
        holdout=holdout,
    )


def wide() -> Recipe:
    real = fast("real", "cifar10", 10)
    return dataclasses.replace(
        real,
        name=named(real.name, "wide"),
        summary="real network of twice the width on CIFAR10, one short cycle in bf16: a teacher",
        network=dataclasses.replace(real.network, width=2 * real.network.width),
        epochs=18,
        kernel_rate=0.09,
        augmentation=Augmentation(crops=((0.0, 24), (0.45, 28), (0.75, 32)), erase=0.25),
        precision="bf16",
    )


def second() -> Recipe:
    first = fast("quaternion", "cifar10", 10)
    return dataclasses.replace(
        first,
        name=named(first.name, "second"),
        summary=f"a second cycle for what {first.name} has trained (--from), skipping much that it knows",
        epochs=100,
        schedule=OneCycle(peak=0.1, warm_up=0.05),
        augmentation=Augmentation(crops=((0.0, 24), (0.35, 28), (0.7, 32))),
        prune=0.5,
        continues=True,
    )


def third() -> Recipe:
    before = second()
    return dataclasses.replace(
        before,
        name=named(fast("quaternion", "cifar10", 10).name, "third"),
        summary=f"a third cycle for what {before.name} has trained (--from): erased squares, small batches",
        epochs=130,
        batch_size=64,
        augmentation=Augmentation(crops=((0.0, 24), (0.3, 28), (0.6, 32)), erase=0.35),
    )


def taught() -> Recipe:
    before = third()
    return dataclasses.replace(
        before,
        name=named(fast("quaternion", "cifar10", 10).name, "taught"),
        summary=f"for what {before.name} has trained (--from): a --teacher's answers, {wide().name}'s",
        epochs=160,
        schedule=OneCycle(peak=0.06, warm_up=0.05),
        augmentation=Augmentation(crops=((0.0, 24), (0.2, 28), (0.45, 32))),
        distil=0.9,
    )
