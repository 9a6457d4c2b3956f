"""Losses, and the scores shown beside them."""

import torch
from torch import Tensor
from torch.nn import functional as F

from quatserve.training.data.kitti import IGNORED


def road_loss(logits: Tensor, targets: Tensor, entropy_weight: float = 1.0) -> Tensor:
    """Soft Dice loss plus binary cross-entropy, over valid pixels. logits (B, 1, H, W), targets (B, H, W)."""
    logits = logits[:, 0]
    valid = (targets != IGNORED).to(logits.dtype)
    road = (targets == 1).to(logits.dtype)
    entropy = F.binary_cross_entropy_with_logits(logits, road, weight=valid, reduction="sum")
    p = logits.sigmoid() * valid
    dice = (2 * (p * road).sum() + 1) / (p.sum() + road.sum() + 1)
    return entropy_weight * entropy / valid.sum().clamp_min(1) + 1 - dice


def wrong_and_total(logits: Tensor, labels: Tensor) -> Tensor:
    """(2,): misclassified images, and images. Their ratio is the error."""
    wrong = (logits.argmax(1) != labels).double()
    return torch.stack([wrong.sum(), torch.ones_like(wrong).sum()])


def disagreement_and_union(logits: Tensor, targets: Tensor) -> Tensor:
    """(2,): union minus intersection, and union, of road pixels. One minus their ratio is the IoU."""
    valid, road = targets != IGNORED, targets == 1
    found = (logits[:, 0] >= 0) & valid
    union = (found | road).sum()
    return torch.stack([union - (found & road).sum(), union]).double()
