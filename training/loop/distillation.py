"""Learning from a teacher's answers beside the labels (Hinton, Vinyals and Dean, 2015).

The teacher is a finished run, most often of a larger network. It is asked once about every training image;
its answers are then part of the data, so that a step costs what it costs without a teacher.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from quatserve.training.errors import UserError
from quatserve.training.evaluation.labels import both_views
from quatserve.training.loop.prediction import Predictor

TEMPERATURE = 4.0  # of both answers: it brings out what a sure teacher thinks of the other classes
LEAST = 1e-12  # a probability that may have been rounded to nothing


def ask(teacher: Predictor, images: Tensor, *, progress: bool) -> Tensor:
    """uint8 (N, 3, H, W) -> (N, classes): logarithms of its mean answer to an image and its mirror image."""
    plain, mirrored = both_views(
        teacher, np.ascontiguousarray(images.permute(0, 2, 3, 1)), title="teacher", progress=progress
    )
    answers = torch.from_numpy((plain + mirrored) / 2)
    if not answers.isfinite().all():
        raise UserError("the teacher's answers are not finite numbers: its run is damaged, train it again")
    return answers.clamp_min(LEAST).log()


def divergences(logits: Tensor, answers: Tensor) -> Tensor:
    """One an image: how far our softened answer is from the teacher's, in nats.

    Times the square of the temperature, so that gradients are as large as those of labels.
    """
    ours, theirs = ((x / TEMPERATURE).log_softmax(1) for x in (logits, answers))
    return TEMPERATURE**2 * F.kl_div(ours, theirs, reduction="none", log_target=True).sum(1)
