"""Rules for what mixes channels: layers and normalisations."""

from torch import fx, nn

from quatserve.export.folding import layers
from quatserve.export.folding.builder import Builder
from quatserve.export.folding.maps import is_diagonal, normalisation_map
from quatserve.export.folding.order import Value, spread
from quatserve.export.folding.trace import FoldError
from quatserve.training.nn.norm import HypercomplexBatchNorm2d, HypercomplexBatchNorm3d

RANKS = {
    HypercomplexBatchNorm2d: 4,
    HypercomplexBatchNorm3d: 5,
    nn.BatchNorm2d: 4,
    nn.BatchNorm3d: 5,
}  # axes of the input, batch included


def rewrite_layer(new: Builder, node: fx.Node) -> Value | None:
    """A convolution or a linear layer becomes the plain torch layer."""
    layer = new.layer(node)
    assert layer is not None
    if len(node.args) + len(node.kwargs) != 1:
        return None  # a transposed convolution that is told the size of its output
    return _read(new, node, layers.plain(layer))


def rewrite_norm(new: Builder, node: fx.Node) -> Value | None:
    """A normalisation is absorbed by the layer that it alone reads, or becomes a convolution of size 1."""
    (before,), norm = node.all_input_nodes, new.layer(node)
    assert norm is not None
    matrix, offset = normalisation_map(norm, str(node.target))
    writer, value = new.sole_writer(before), new.values[before]
    if writer is not None and layers.can_follow(writer, matrix):
        layers.follow(writer, matrix, offset)
        return value
    rank = value.rank or next((rank for kind, rank in RANKS.items() if isinstance(norm, kind)), None)
    separate = is_diagonal(matrix) and (value.order is None or value.permuted)
    if separate and rank in (None, 2):
        return None  # torch's own norm of vectors stays
    if rank is None:
        raise FoldError(
            f"{node.target}: it cannot be told how many axes its input has; put it behind a layer"
        )
    return _read(new, node, layers.pointwise(matrix, offset, rank, separate=separate))


def _read(new: Builder, node: fx.Node, layer: layers.Layer) -> Value:
    """Let a new layer compute the node from its input, in whatever order that is stored."""
    (before,) = node.all_input_nodes
    value = new.values[before]
    stored, order = value.node, None
    if value.order is not None:
        if isinstance(layer, nn.Linear):
            if value.rank == 2:
                layers.read_stored(layer, spread(value.order, layer.in_features // len(value.order)))
            else:
                stored = new.natural(before)
        elif layers.is_ungrouped(layer):
            layers.read_stored(layer, value.order)
        elif value.permuted and layers.is_depthwise(layer):
            layers.write_stored(layer, value.order)
            order = value.order
        else:
            stored = new.natural(before)
    rank = layers.rank_of(layer) or value.rank
    channels = layers.outputs_of(layer) if rank == 2 or not isinstance(layer, nn.Linear) else None
    return Value(new.call(str(node.target), layer, stored), channels, order, rank)
