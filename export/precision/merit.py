"""Whether a classifier in fewer bits is as good as in fp32, by images that were held out of training.

Both answer the same images, so their cross-entropies are compared in pairs: the noise that both share, which
images are hard, cancels. What decides is the upper limit of the mean difference, not the mean: few images
give a wide limit, and then the file does not ship.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_CROSS_ENTROPY = 0.01  # nats above fp32's, at the upper limit of 95 %
MAX_ERROR = 0.005  # above fp32's: half a point
LIMIT_95 = 1.645  # standard errors above the mean, one-sided
LEAST = 1e-9  # a probability that was rounded to nothing
Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Merit:
    """A precision against fp32 on the same labelled images."""

    images: int
    cross_entropy: float  # mean difference, in nats; above 0 is worse than fp32
    upper: float  # its upper limit
    error: float  # difference of the shares of wrong answers

    @property
    def ships(self) -> bool:
        return self.upper <= MAX_CROSS_ENTROPY and self.error <= MAX_ERROR  # False for NaN

    def __str__(self) -> str:
        return (
            f"cross-entropy {self.cross_entropy:+.4f} against fp32, at most {self.upper:+.4f} "
            f"({MAX_CROSS_ENTROPY} allowed), error {100 * self.error:+.2f} points "
            f"({100 * MAX_ERROR:g} allowed), {self.images:,} held-out images"
        )


def compare(fp32: Floats, other: Floats, labels: NDArray[np.integer]) -> Merit:
    """Probabilities (N, classes) of both precisions, labels (N,)."""
    rows = np.arange(len(labels))
    entropies = [-np.log(np.maximum(p[rows, labels].astype(np.float64), LEAST)) for p in (fp32, other)]
    difference = entropies[1] - entropies[0]
    mean = float(difference.mean())
    wrong = [float(np.mean(p.argmax(1) != labels)) for p in (fp32, other)]
    return Merit(
        images=len(labels),
        cross_entropy=mean,
        upper=mean + LIMIT_95 * float(difference.std(ddof=1)) / math.sqrt(len(labels)),
        error=wrong[1] - wrong[0],
    )
