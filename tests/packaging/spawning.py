"""Starts a child process by `spawn` that unpickles one of our objects."""

from multiprocessing import get_context

from quatserve.training.loop.ranks import Ranks


def rank_of(ranks: Ranks) -> int:
    return ranks.rank


if __name__ == "__main__":
    with get_context("spawn").Pool(1) as pool:
        assert pool.apply(rank_of, (Ranks(rank=3, size=4),)) == 3
