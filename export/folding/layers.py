"""Plain torch layers, and the changes to their weights that absorb what stands before or behind them.

behind:   M (K * x) + b = (M K) * x + b       exact, padding included
before:   K * (P x)     = (K P) * x           exact for a selection P of channels, padding included
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from quatserve.export.folding.maps import is_diagonal
from quatserve.training.nn.blocks import by_group
from quatserve.training.nn.layer import HypercomplexLayer

Layer = _ConvNd | nn.Linear
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}  # by axes of space
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
PLAIN = (*CONVOLUTIONS.values(), *TRANSPOSED.values(), nn.Linear)
LAYERS = (*PLAIN, HypercomplexLayer)
GEOMETRY = ("stride", "padding", "dilation", "groups", "padding_mode", "output_padding")


def plain(layer: nn.Module) -> Layer:
    """The torch layer of the same meaning, with weights of its own."""
    names = [name for name in GEOMETRY if hasattr(layer, name) and not _is_plain_convolution(layer, name)]
    geometry = {name: getattr(layer, name) for name in names}
    if isinstance(layer, HypercomplexLayer):
        geometry.pop("groups", None)  # `_dense` has no groups
        return _made(_kind_of(layer), _dense(layer), layer.bias, **geometry)
    assert isinstance(layer, Layer)
    kind = next(kind for kind in PLAIN if isinstance(layer, kind))
    return _made(kind, layer.weight, layer.bias, **geometry)


def _is_plain_convolution(layer: nn.Module, name: str) -> bool:
    """Whether `name` is an argument that only transposed convolutions take, and the layer is none."""
    return name == "output_padding" and isinstance(layer, tuple(CONVOLUTIONS.values()))


def _kind_of(layer: HypercomplexLayer) -> Any:
    axes = len(layer.kernel_size)
    if not axes:
        return nn.Linear
    return (TRANSPOSED if layer.transposed else CONVOLUTIONS)[axes]


def _dense(layer: HypercomplexLayer) -> Tensor:
    """The real weight without groups, of channels in d blocks: what no group reads is zero."""
    weight, groups, d = layer.real_weight(), layer.groups, layer.algebra.dimension
    if groups == 1:
        return weight
    rows, columns = weight.shape[0], weight.shape[1] * groups
    first, second = (by_group(torch.arange(size), d, groups, 0).chunk(groups) for size in (rows, columns))
    dense = weight.new_zeros(rows, columns, *weight.shape[2:])
    for these, those, part in zip(first, second, weight.chunk(groups), strict=True):
        dense[these[:, None], those] = part
    return dense


def pointwise(matrix: Tensor, offset: Tensor, rank: int, *, separate: bool) -> Layer:
    """The map y = M x + b of channels as a convolution of size 1; `separate` if the channels do not mix."""
    groups = len(matrix) if separate else 1
    weight = matrix.diagonal()[:, None] if separate else matrix
    if rank == 2:
        return _made(nn.Linear, weight, offset)
    ones = (1,) * (rank - 2)
    return _made(CONVOLUTIONS[rank - 2], weight.reshape(*weight.shape, *ones), offset, groups=groups)


def rank_of(layer: Layer) -> int | None:
    """The number of axes of what a convolution writes, batch included; None if any number is possible."""
    return None if isinstance(layer, nn.Linear) else layer.weight.ndim


def outputs_of(layer: Layer) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def is_ungrouped(layer: Layer) -> bool:
    return isinstance(layer, nn.Linear) or layer.groups == 1


def is_depthwise(layer: Layer) -> bool:
    """Whether each output is made of the one input of the same number."""
    if isinstance(layer, nn.Linear | _ConvTransposeNd):
        return False
    return layer.groups == layer.in_channels == layer.out_channels


def can_follow(layer: Layer, matrix: Tensor) -> bool:
    """Whether `follow` can absorb a matrix behind the layer without making its groups one."""
    return is_ungrouped(layer) or (is_diagonal(matrix) and not isinstance(layer, _ConvTransposeNd))


def follow(layer: Layer, matrix: Tensor, offset: Tensor) -> None:
    """Change the layer into itself followed by M x + b."""
    axis, bias = _axes(layer)[0], layer.bias
    weight = layer.weight.movedim(axis, 0)
    mixed = torch.tensordot(matrix, weight, 1) if is_ungrouped(layer) else _scaled(matrix, weight)
    _set(layer, mixed.movedim(0, axis), offset if bias is None else matrix @ bias + offset)


def read_stored(layer: Layer, order: Tensor) -> None:
    """Let the layer read channels as they are stored: channel c at order[c]. It must be ungrouped."""
    axis, stored = _axes(layer)[1], int(order.max()) + 1
    shape = [*layer.weight.shape]
    shape[axis] = stored
    _set(layer, layer.weight.new_zeros(shape).index_add(axis, order, layer.weight), layer.bias)
    if isinstance(layer, nn.Linear):
        layer.in_features = stored
    else:
        layer.in_channels = stored


def write_stored(layer: Layer, order: Tensor) -> None:
    """Let the layer write channel c to place order[c], a permutation."""
    places, bias = order.argsort(), layer.bias
    _set(layer, layer.weight.index_select(_axes(layer)[0], places), None if bias is None else bias[places])


def _made(kind: Any, weight: Tensor, bias: Tensor | None, **geometry: Any) -> Layer:
    groups = geometry.get("groups", 1)
    if kind is nn.Linear:
        sizes: tuple[Any, ...] = (weight.shape[1], weight.shape[0])
    elif issubclass(kind, _ConvTransposeNd):
        sizes = (weight.shape[0], weight.shape[1] * groups, weight.shape[2:])
    else:
        sizes = (weight.shape[1] * groups, weight.shape[0], weight.shape[2:])
    layer: Layer = kind(*sizes, bias=bias is not None, device="meta", **geometry)
    _set(layer, weight, bias)
    return layer.eval()


def _set(layer: Layer, weight: Tensor, bias: Tensor | None) -> None:
    layer.weight = _constant(weight)
    if bias is not None:
        layer.bias = _constant(bias)


def _constant(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone(memory_format=torch.contiguous_format), requires_grad=False)


def _scaled(matrix: Tensor, weight: Tensor) -> Tensor:
    return matrix.diagonal().reshape(-1, *(1,) * (weight.ndim - 1)) * weight


def _axes(layer: Layer) -> tuple[int, int]:
    """The axes of the weight that count outputs and inputs."""
    return (1, 0) if isinstance(layer, _ConvTransposeNd) else (0, 1)
