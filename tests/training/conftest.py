"""One thread a process: the networks here are tiny, and tests start several processes at once."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test that draws weights draws the same ones every time."""
    torch.manual_seed(0)
