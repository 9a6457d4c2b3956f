"""The loss of roads against its definition, in numpy."""

import numpy as np
import pytest
import torch

from quatserve.training.data.kitti import IGNORED
from quatserve.training.loop.losses import road_loss
from quatserve.training.recipes import find_recipe
from quatserve.training.recipes.schema import Segmentation

LOGITS = np.random.default_rng(0).normal(size=(2, 1, 5, 7))
TARGETS = np.random.default_rng(1).choice([0, 1, IGNORED], (2, 5, 7))


def terms() -> tuple[float, float]:
    """Mean cross-entropy and soft Dice loss, of the pixels that are not to be ignored."""
    valid = TARGETS != IGNORED
    p, road = 1 / (1 + np.exp(-LOGITS[:, 0][valid])), TARGETS[valid] == 1
    entropy = -np.log(np.where(road, p, 1 - p)).mean()
    return entropy, 1 - (2 * p[road].sum() + 1) / (p.sum() + road.sum() + 1)


@pytest.mark.parametrize(("recipe", "weight"), [("kitti-road-quaternion", 1), ("paper-kitti-road-real", 0)])
def test_ours_adds_cross_entropy_to_the_dice_loss_of_the_papers_authors(recipe: str, weight: float) -> None:
    task = find_recipe(recipe).task
    assert isinstance(task, Segmentation)
    found = road_loss(torch.from_numpy(LOGITS), torch.from_numpy(TARGETS), task.entropy_weight)
    entropy, dice = terms()
    assert float(found) == pytest.approx(weight * entropy + dice)


def test_a_frame_without_a_valid_pixel_is_no_loss() -> None:
    nothing = torch.full((2, 5, 7), IGNORED)
    assert float(road_loss(torch.from_numpy(LOGITS), nothing)) == 0
