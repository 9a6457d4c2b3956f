"""Statistics keep full fp32 whatever the process allows, and the process keeps its settings."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quatserve.training.nn import precision
from quatserve.training.nn.norm import HypercomplexBatchNorm2d
from quatserve.training.nn.precision import BACKENDS, exact_matmul, ieee_fp32
from tests.training.oracles import assert_close, correlated_batch, randn

CUDA, CPU = BACKENDS


def older(precision: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(precision)


def newer(cuda: str, cpu: str) -> Callable[[], None]:
    def choose() -> None:
        CUDA.fp32_precision, CPU.fp32_precision = cuda, cpu

    return choose


def allow_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


SETTINGS = {
    "default": lambda: None,
    "high": older("high"),
    "medium": older("medium"),
    "allow_tf32": allow_tf32,
    "cuda tf32": newer("tf32", "ieee"),
    "cpu bf16": newer("ieee", "bf16"),
}


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> Iterator[None]:
    SETTINGS[request.param]()
    yield
    older("highest")()
    newer("none", "none")()


def state() -> list[str]:
    """Every setting there is; torch refuses to name some where another was used."""
    found = [backend.fp32_precision for backend in BACKENDS]
    for read in (torch.get_float32_matmul_precision, lambda: torch.backends.cuda.matmul.allow_tf32):
        try:
            found.append(str(read()))
        except RuntimeError:
            found.append("refused")
    return found


class Operators(TorchDispatchMode):
    """The names of all operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("setting")
def test_products_are_exact_and_the_setting_returns() -> None:
    before = state()
    with ieee_fp32():
        inside = state()
    assert not {"tf32", "bf16"} & set(inside)
    assert "refused" not in inside or before == inside  # a mixture of both settings stops cuBLAS
    assert state() == before
    with pytest.raises(KeyError), ieee_fp32():
        raise KeyError
    assert state() == before


@pytest.mark.parametrize("algebra", ["real", "complex", "quaternion", "octonion"])
def test_every_matrix_product_of_a_norm_is_exact(algebra: str) -> None:
    """In training and evaluation, forward and backward."""
    layer = HypercomplexBatchNorm2d(24, algebra=algebra)
    x = correlated_batch(1, 24).float().requires_grad_()
    with Operators() as called:
        layer(x).square().sum().backward()
        layer.eval()(x).square().sum().backward()
    assert not called.names & {"aten.mm.default", "aten.bmm.default", "aten.addmm.default"}
    assert ("quatserve.exact_matmul.default" in called.names) == (algebra != "real")


def test_exact_matmul_is_computed_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []

    @contextmanager
    def watched() -> Iterator[None]:
        with ieee_fp32():
            entered.append(state())
            yield

    monkeypatch.setattr(precision, "ieee_fp32", watched)
    exact_matmul(randn(2, 3), randn(3, 2))
    assert entered


def test_exact_matmul_is_a_product_with_gradients() -> None:
    a, b = randn(3, 4).requires_grad_(), randn(4, 5, seed=1).requires_grad_()
    assert_close(exact_matmul(a, b), a.detach() @ b.detach())
    assert torch.autograd.gradcheck(exact_matmul, (a, b))
    torch.library.opcheck(exact_matmul, (a, b))


def test_mixed_layouts() -> None:
    a: Tensor = randn(6, 4)[::2].T
    assert_close(exact_matmul(a, a.T), a @ a.T)
