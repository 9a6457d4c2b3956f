"""Component-wise concatenation against its definition, and as one node of a traced graph."""

import pytest
import torch
from torch import Tensor, fx, nn

from quatserve.training.nn.algebra import ALGEBRAS, QUATERNION, Algebra
from quatserve.training.nn.join import join_blocks, join_components
from tests.training.oracles import randn

every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS.values(), ids=lambda algebra: algebra.name)


@every_algebra
@pytest.mark.parametrize("space", [(), (3,), (2, 3), (2, 1, 3)], ids=len)
def test_maps_are_concatenated_within_each_component(algebra: Algebra, space: tuple[int, ...]) -> None:
    d = algebra.dimension
    maps = [randn(2, d * channels, *space, seed=channels) for channels in (2, 1, 3)]
    joined = join_components(algebra, *maps)
    expected = [part.chunk(d, 1)[component] for component in range(d) for part in maps]
    assert torch.equal(joined, torch.cat(expected, 1))


def test_four_components_of_two_maps() -> None:
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 7, 8]])
    assert join_components(QUATERNION, a, b).tolist() == [[1, 5, 2, 6, 3, 7, 4, 8]]


class Joining(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return join_components(QUATERNION, a, b)


def test_a_trace_holds_it_as_one_node() -> None:
    graph = fx.symbolic_trace(Joining())
    (call,) = [node for node in graph.graph.nodes if node.op == "call_function"]
    a, b = graph.graph.find_nodes(op="placeholder")
    assert (call.target, call.args) == (join_blocks, (4, a, b))
    left, right = randn(2, 8, 3, 3), randn(2, 4, 3, 3, seed=1)
    assert torch.equal(graph(left, right), join_components(QUATERNION, left, right))


def test_compiled_without_a_break() -> None:
    left, right = randn(2, 8, 3, 3), randn(2, 4, 3, 3, seed=1)
    compiled = torch.compile(Joining(), backend="eager", fullgraph=True)
    assert torch.equal(compiled(left, right), join_components(QUATERNION, left, right))
