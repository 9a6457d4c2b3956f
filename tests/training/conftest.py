"""One thread a process: the networks here are tiny, and tests start several processes at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.training.tiny_command import install_tiny_recipes, write_tiny_data

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test that draws weights draws the same ones every time."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of the tiny recipes, which are there as long as it is."""
    folder = tmp_path_factory.mktemp("data")
    write_tiny_data(folder)
    with pytest.MonkeyPatch.context() as patch:
        install_tiny_recipes(patch.setitem)
        yield folder
