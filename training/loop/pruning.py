"""Epochs that skip what the network knows: dynamic pruning after InfoBatch (Qin et al., 2024).

Of the images whose loss was below the mean when they were last seen, an epoch leaves out a share, drawn
anew each time. Those that stay weigh more by as much, so that gradients are, on average, those of all images.
"""

import torch
from torch import Generator, Tensor

WHOLE_FROM = 0.875  # of a run: its last epochs see every image


class Pruning:
    def __init__(self, count: int, share: float):
        self.share = share
        self.losses = torch.full((count,), torch.nan)  # nan: never seen, and never left out

    def draw(self, progress: float, generator: Generator) -> tuple[Tensor, Tensor]:
        """Images of an epoch, in random order, and the weight of each image of the data set."""
        easy = self.losses < self.losses.nanmean()
        if progress >= WHOLE_FROM:
            easy.zero_()
        left_out = easy & (torch.rand(len(easy), generator=generator) < self.share)
        kept = (~left_out).nonzero().flatten()
        weights = torch.where(easy, 1 / (1 - self.share), 1.0)
        return kept[torch.randperm(len(kept), generator=generator)], weights

    def remember(self, index: Tensor, losses: Tensor) -> None:
        self.losses[index] = losses.detach().cpu().float()
