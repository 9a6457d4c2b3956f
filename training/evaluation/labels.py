"""Scores a classifier: error with and without flip averaging, and the confusion matrix."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from quatserve.training.data.cifar import LabelledImages
from quatserve.training.loop.prediction import Images, Predictor

BATCH_PIXELS = 250 * 32 * 32


@dataclass(frozen=True)
class LabelEvaluation:
    images: int
    error: float
    flip_error: float  # of the mean probabilities of an image and its mirror image
    confusion: NDArray[np.int64]  # (classes, classes): row true, column predicted, without flip averaging

    def as_json(self) -> dict[str, Any]:
        return {
            "images": self.images,
            "error": self.error,
            "flip_error": self.flip_error,
            "confusion": self.confusion.tolist(),
        }


def evaluate_labels(predict: Predictor, data: LabelledImages, *, progress: bool = False) -> LabelEvaluation:
    """Score `predict`, a function of uint8 images, on all of `data`."""
    images = np.ascontiguousarray(data.images.permute(0, 2, 3, 1).numpy())
    labels = data.labels.numpy()
    plain, mirrored = both_views(predict, images, title="evaluate", progress=progress)
    predicted = plain.argmax(1)
    return LabelEvaluation(
        images=len(labels),
        error=float(np.mean(predicted != labels)),
        flip_error=float(np.mean((plain + mirrored).argmax(1) != labels)),
        confusion=confusion_matrix(labels, predicted, plain.shape[1]),
    )


def confusion_matrix(
    labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """(classes, classes) counts: row true, column predicted."""
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def both_views(
    predict: Predictor, images: Images, *, title: str, progress: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return probabilities for the images, and for their mirror images."""
    plain, mirrored = [], []
    with tqdm(total=len(images), desc=title, unit="img", disable=not progress, leave=False) as bar:
        size = max(1, BATCH_PIXELS // (images.shape[1] * images.shape[2]))
        for start in range(0, len(images), size):
            part = images[start : start + size]
            plain.append(predict(part))
            mirrored.append(predict(np.ascontiguousarray(part[:, :, ::-1])))
            bar.update(len(part))
    return np.concatenate(plain), np.concatenate(mirrored)
