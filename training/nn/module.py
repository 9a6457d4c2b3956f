"""What every hypercomplex layer is: a module that knows its algebra."""

from torch import nn

from quatserve.training.nn.algebra import ALGEBRAS, Algebra, find_algebra


class HypercomplexModule(nn.Module):
    """A module of the algebra that its class names, or else of the one that the keyword names."""

    algebra: Algebra

    def __init__(self, algebra: Algebra | str | None):
        super().__init__()
        layer, own = type(self).__name__, getattr(type(self), "algebra", None)
        if algebra is None and own is None:
            raise TypeError(f"{layer} needs an algebra: algebra= one of {', '.join(ALGEBRAS)}")
        if algebra is not None and own is not None and find_algebra(algebra) != own:
            raise ValueError(f"{layer} is {own.name}: use Hypercomplex... for algebra={algebra!r}")
        if algebra is not None:
            self.algebra = find_algebra(algebra)
