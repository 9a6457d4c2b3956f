"""The paper's procedure, for the networks of its tables.

What its text leaves out comes from its authors' published code: 200 epochs, batches of 32 (CIFAR) or 8
(KITTI), L2 1e-4 on kernels (a decay of 2e-4, since the penalty's gradient is 2 x 1e-4 w), shifts of up to 1/8
and flips, soft Dice alone as the loss of roads. Not theirs are the scale of the input, which every network
here shares, all of CIFAR's 50,000 training images (they kept 5,000 aside), and for roads what `road` lists.
"""

from quatserve.training.data.kitti import HOLDOUT
from quatserve.training.networks.residual import NetworkConfig
from quatserve.training.recipes.schedule import Steps
from quatserve.training.recipes.schema import Classification, Dataset, Recipe, Segmentation, named


def cifar(algebra: str, dataset: Dataset, classes: int, *, deep: bool = False) -> Recipe:
    kind = "deep" if deep else "shallow"
    return Recipe(
        name=named("paper", dataset, algebra, "deep" if deep else ""),
        summary=f"the paper's procedure: {kind} {algebra} network on {dataset.upper()}",
        dataset=dataset,
        network=NetworkConfig(algebra=algebra, classes=classes, depth=10 if deep else 2),
        epochs=200,  # from the authors' code
        batch_size=32,  # from the authors' code
        schedule=Steps(rates=((0, 0.01), (10, 0.1), (120, 0.01), (150, 0.001))),
        weight_decay=2e-4,  # from the authors' code
        task=Classification(shift_pixels=4, flip="random"),  # from the authors' code
        ema_decay=0.0,
    )


def road(algebra: str) -> Recipe:
    # Not theirs: an epoch is every training frame, where they drew 150 at random; `scale` also changes the
    # aspect by a third of what it changes the size; and the last layer, 1 x 1, is decayed like the others.
    return Recipe(
        name=named("paper", "kitti-road", algebra),
        summary=f"the paper's procedure: {algebra} road network without whitening",
        dataset="kitti-road",
        network=NetworkConfig(algebra=algebra, task="segmentation", whiten=False),
        epochs=200,  # from the authors' code
        batch_size=8,  # from the authors' code
        schedule=Steps(
            rates=((0, 0.01), (10, 0.1), (50, 0.01), (100, 0.001), (150, 0.0001))
        ),  # 50: their code
        weight_decay=2e-4,  # from the authors' code
        task=Segmentation(flip=True, scale=0.2, shift=0.2, entropy_weight=0.0),  # from the authors' code
        ema_decay=0.0,
        holdout=HOLDOUT,  # theirs drew validation frames at random from the training folder
        height=93,
        width=310,
    )
