"""The examples in the docstrings of all public layers run and show what they say."""

import doctest
import re

import pytest
import torch
from torch import nn

from quatserve import nn as layers

LAYERS = [name for name in layers.__all__ if isinstance(getattr(layers, name), type) and name != "Algebra"]


def test_every_algebra_has_every_layer() -> None:
    kinds = {name.removeprefix("Hypercomplex") for name in LAYERS if name.startswith("Hypercomplex")}
    assert {"Conv2d", "BatchNorm2d", "Linear", "Dropout", "ConvTranspose2d"} < kinds
    prefixes = ("Complex", "Quaternion", "Octonion", "Hypercomplex")
    assert set(LAYERS) == {prefix + kind for prefix in prefixes for kind in kinds}


@pytest.mark.parametrize("name", LAYERS)
def test_example(name: str) -> None:
    layer = getattr(layers, name)
    assert issubclass(layer, nn.Module)
    assert layer.__doc__ is not None
    assert re.search(r"\by(_\w+)? = ", layer.__doc__)  # the equation
    (example,) = doctest.DocTestFinder(recurse=False).find(layer, name, globs=vars(layers) | {"torch": torch})
    assert example.examples
    report: list[str] = []
    doctest.DocTestRunner().run(example, out=report.append)
    assert not report, "".join(report)
