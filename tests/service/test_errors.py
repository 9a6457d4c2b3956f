"""The exceptions of the service stand in the tree that their module draws."""

import inspect
import re

from quatserve.service import errors


def test_every_exception_is_in_the_drawing() -> None:
    classes = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    drawn = set(re.findall(r"\b\w+Error\b", str(errors.__doc__)))
    assert drawn == classes
