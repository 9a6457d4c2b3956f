"""Losses, and the scores shown beside them."""

import torch
from torch import Tensor
from torch.nn import functional as F

from quatserve.training.data.kitti import IGNORED


def segmentation_loss(logits: Tensor, targets: Tensor, entropy_weight: float = 1.0) -> Tensor:
    """Soft Dice loss plus cross-entropy, over valid pixels. logits (B, maps, H, W), targets (B, H, W)."""
    one = logits.shape[1] == 1
    return (road_loss if one else several_classes_loss)(logits, targets, entropy_weight)


def road_loss(logits: Tensor, targets: Tensor, entropy_weight: float = 1.0) -> Tensor:
    """Soft Dice loss plus binary cross-entropy, over valid pixels. logits (B, 1, H, W), targets (B, H, W)."""
    logits = logits[:, 0]
    valid = (targets != IGNORED).to(logits.dtype)
    road = (targets == 1).to(logits.dtype)
    entropy = F.binary_cross_entropy_with_logits(logits, road, weight=valid, reduction="sum")
    p = logits.sigmoid() * valid
    dice = (2 * (p * road).sum() + 1) / (p.sum() + road.sum() + 1)
    return entropy_weight * entropy / valid.sum().clamp_min(1) + 1 - dice


def several_classes_loss(logits: Tensor, targets: Tensor, entropy_weight: float = 1.0) -> Tensor:
    """The mean Dice loss of the classes, background among them, plus cross-entropy."""
    maps, valid = logits.shape[1], targets != IGNORED
    labels = torch.where(valid, targets, 0).long()
    entropy = (F.cross_entropy(logits, labels, reduction="none") * valid).sum() / valid.sum().clamp_min(1)
    truth = F.one_hot(labels, maps).permute(0, 3, 1, 2) * valid[:, None]
    p = logits.softmax(1) * valid[:, None]
    both, sums = ((x).sum((0, 2, 3)) for x in (p * truth, p + truth))
    return entropy_weight * entropy + 1 - ((2 * both + 1) / (sums + 1)).mean()


def wrong_and_total(logits: Tensor, labels: Tensor) -> Tensor:
    """(2,): misclassified images, and images. Their ratio is the error."""
    wrong = (logits.argmax(1) != labels).double()
    return torch.stack([wrong.sum(), torch.ones_like(wrong).sum()])


def disagreement_and_union(logits: Tensor, targets: Tensor) -> Tensor:
    """(2,): union minus intersection, and union, of foreground pixels; summed over its classes.

    One minus their ratio is the IoU.
    """
    valid = targets != IGNORED
    found = (logits[:, 0] >= 0).long() if logits.shape[1] == 1 else logits.argmax(1)
    found, truth = found * valid, targets * valid
    agreed = ((found == truth) & (found > 0)).sum()
    union = (found > 0).sum() + (truth > 0).sum() - agreed
    return torch.stack([union - agreed, union]).double()
