"""Full fp32 for the statistics, whatever a process has chosen for its layers.

The covariance of values that TF32 or bfloat16 rounded is another one: its whitening matrix whitens nothing.
`torch.set_float32_matmul_precision`, the backends' `fp32_precision` and environment variables allow such
products in a whole process; here they do not hold.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

BACKENDS = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
ROUNDED = ("tf32", "bf16")


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Operations on x within keep its dtype. Some devices, meta among them, know no autocast."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


@contextmanager
def ieee_fp32() -> Iterator[None]:
    """Products within are IEEE fp32. torch refuses a mixture of its older and its newer setting: set both."""
    chosen = [backend.fp32_precision for backend in BACKENDS]
    if not any(precision in ROUNDED for precision in chosen):
        yield
        return
    older = _older_setting()
    try:
        torch.set_float32_matmul_precision("highest")
        for backend in BACKENDS:
            backend.fp32_precision = "ieee"
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        for backend, precision in zip(BACKENDS, chosen, strict=True):
            backend.fp32_precision = precision


def _older_setting() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer setting alone was used
        return None


@torch.library.custom_op("quatserve::exact_matmul", mutates_args=())
def exact_matmul(a: Tensor, b: Tensor) -> Tensor:
    """(n, k) by (k, m). An operator of its own: the compiler keeps it, and the precision with it."""
    with ieee_fp32():
        return a @ b


@exact_matmul.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001 - torch's signature
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    return exact_matmul(grad, b.T), exact_matmul(a.T, grad)


exact_matmul.register_autograd(_gradients, setup_context=_save)
