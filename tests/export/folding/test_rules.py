"""What the fold makes of single patterns: absorbed, carried, or moved at run time."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from quatserve.export.folding import fold
from quatserve.nn import QUATERNION, HypercomplexBatchNorm2d, HypercomplexConv2d, join_components
from tests.export.folding.networks import equal, randomise
from tests.export.folding.test_paper_networks import calls


class Net(nn.Module):
    """Layers by name, and a forward that uses them."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, forward: Callable[["Net", Tensor], Any], **layers: nn.Module):
        super().__init__()
        self.use = forward
        for name, layer in layers.items():
            self.add_module(name, layer)
        randomise(self)

    def forward(self, x: Tensor) -> Any:
        return self.use(self, x)


def conv(channels: int = 8, out: int = 8) -> HypercomplexConv2d:
    return HypercomplexConv2d(channels, out, 3, padding=1, bias=False, algebra=QUATERNION)


def norm(channels: int = 8) -> HypercomplexBatchNorm2d:
    return HypercomplexBatchNorm2d(channels, algebra=QUATERNION)


def join(*maps: Tensor) -> Tensor:
    return join_components(QUATERNION, *maps)


def test_a_norm_behind_its_convolution_is_absorbed() -> None:
    net = Net(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=norm())
    assert calls(equal(net)) == {"Conv2d": 1}


def test_a_norm_of_torch_is_absorbed_too() -> None:
    net = Net(lambda n, x: n.norm(n.conv(x)), conv=nn.Conv2d(8, 6, 4, groups=2), norm=nn.BatchNorm2d(6))
    assert calls(equal(net)) == {"Conv2d": 1}


def test_a_convolution_with_two_readers_keeps_its_norm_apart() -> None:
    net = Net(lambda n, x: n.norm(n.conv(x)) + n.conv(x) * 2, conv=conv(), norm=norm())
    net.use = lambda n, x: (lambda y: n.norm(y) + y)(n.conv(x))
    assert calls(equal(net)) == {"Conv2d": 2, "add": 1}


def test_a_norm_alone_is_a_convolution_of_size_one() -> None:
    net = Net(lambda n, x: n.norm(x.relu()), norm=norm())
    folded = equal(net)
    layer = folded.get_submodule("norm")
    assert isinstance(layer, nn.Conv2d)
    assert (layer.kernel_size, layer.groups) == ((1, 1), 1)


def test_two_norms_in_a_row_are_one_map() -> None:
    net = Net(lambda n, x: n.b(n.a(x.relu())), a=norm(), b=norm())
    assert calls(equal(net)) == {"relu": 1, "Conv2d": 1}


def test_a_dense_norm_behind_groups_stays_apart() -> None:
    """Absorbed, it would make one dense layer of the groups."""
    net = Net(lambda n, x: n.norm(n.conv(x)), conv=nn.Conv2d(8, 8, 3, groups=4), norm=norm())
    assert calls(equal(net)) == {"Conv2d": 2}


def test_dropout_and_identity_disappear() -> None:
    net = Net(
        lambda n, x: n.norm(n.same(n.drop(n.conv(x)))),
        conv=conv(),
        drop=nn.Dropout2d(),
        same=nn.Identity(),
        norm=norm(),
    )
    assert calls(equal(net)) == {"Conv2d": 1}


def test_a_layer_called_twice_is_absorbed_each_time() -> None:
    net = Net(lambda n, x: n.b(n.conv(n.a(n.conv(x)).relu())), conv=conv(), a=norm(), b=norm())
    folded = equal(net)
    assert calls(folded) == {"Conv2d": 2, "relu": 1}
    assert len(list(folded.parameters())) == 4


def test_equal_layers_of_a_module_called_twice_are_kept_once() -> None:
    net = Net(lambda n, x: n.norm(n.conv(n.norm(n.conv(x)).relu())), conv=conv(), norm=norm())
    folded = equal(net)
    assert calls(folded) == {"Conv2d": 2, "relu": 1}
    assert len(list(folded.parameters())) == 2


def test_a_join_is_read_in_its_stored_order() -> None:
    net = Net(lambda n, x: n.c(join(n.a(x), n.b(x)).relu()), a=conv(), b=conv(8, 4), c=conv(12, 4))
    assert calls(equal(net)) == {"Conv2d": 3, "cat": 1, "relu": 1}


def test_what_is_added_to_a_join_is_written_in_its_order() -> None:
    def use(n: Net, x: Tensor) -> Any:
        joined = join(n.a(x), n.b(x))
        return n.d(joined + n.norm(n.c(joined)))

    net = Net(use, a=conv(), b=conv(), c=conv(16, 16), norm=norm(16), d=conv(16))
    assert calls(equal(net)) == {"Conv2d": 4, "cat": 1, "add": 1}


def test_a_join_of_joins_is_carried() -> None:
    def use(n: Net, x: Tensor) -> Any:
        inner = join(n.a(x), n.b(x))
        return n.d(join(inner, n.c(inner)))

    net = Net(use, a=conv(), b=conv(), c=conv(16, 8), d=conv(24))
    assert calls(equal(net)) == {"Conv2d": 4, "cat": 2}


def test_sums_of_two_joins_move_one_of_them() -> None:
    """Neither is written by a single layer, and their orders differ."""

    def use(n: Net, x: Tensor) -> Any:
        return n.e(join(n.a(x), n.b(x)) + join(n.c(x), n.d(x)))

    net = Net(use, a=conv(), b=conv(), c=conv(8, 4), d=conv(8, 12), e=conv(16))
    assert calls(equal(net)) == {"Conv2d": 5, "cat": 2, "add": 1, "index_select": 1}


def test_a_join_that_leaves_the_module_is_in_natural_order() -> None:
    net = Net(lambda n, x: join(n.a(x), n.b(x)), a=conv(), b=conv())
    assert calls(equal(net)) == {"Conv2d": 2, "cat": 1, "index_select": 1}


def test_a_join_of_unknown_widths_is_computed_as_torch_does() -> None:
    net = Net(lambda n, x: n.a(join(x[:, :4], x[:, 4:])), a=conv())
    assert calls(equal(net))["unflatten"] == 2


def test_a_literal_concatenation_stays_literal() -> None:
    net = Net(lambda n, x: torch.cat([n.a(x), n.b(x)], 1), a=conv(), b=conv())
    assert calls(equal(net)) == {"Conv2d": 2, "cat": 1}


def test_a_concatenation_of_joins_carries_both_orders() -> None:
    def use(n: Net, x: Tensor) -> Any:
        return n.d(torch.cat([n.c(x), join(n.a(x), n.b(x))], dim=1))

    net = Net(use, a=conv(), b=conv(), c=conv(), d=conv(24))
    assert calls(equal(net)) == {"Conv2d": 4, "cat": 2}


def test_groups_read_the_natural_order() -> None:
    net = Net(lambda n, x: n.c(join(n.a(x), n.b(x))), a=conv(), b=conv(), c=nn.Conv2d(16, 8, 3, groups=4))
    assert calls(equal(net)) == {"Conv2d": 3, "cat": 1, "index_select": 1}


def test_a_depthwise_layer_keeps_the_order() -> None:
    def use(n: Net, x: Tensor) -> Any:
        return n.d(n.c(join(n.a(x), n.b(x))))

    net = Net(use, a=conv(), b=conv(), c=nn.Conv2d(16, 16, 3, groups=16), d=conv(16))
    assert calls(equal(net)) == {"Conv2d": 4, "cat": 1}


def test_a_norm_behind_a_depthwise_layer_in_another_order_is_exact() -> None:
    def use(n: Net, x: Tensor) -> Any:
        return n.d(n.norm(n.c(join(n.a(x), n.b(x)))))

    depthwise = nn.Conv2d(16, 16, 3, groups=16)
    equal(Net(use, a=conv(), b=conv(), c=depthwise, norm=nn.BatchNorm2d(16), d=conv(16)))


def test_a_depthwise_layer_of_repeated_channels_reads_them_one_by_one() -> None:
    net = Net(lambda n, x: n.b(n.a(x).repeat(1, 2, 1, 1)), a=conv(), b=nn.Conv2d(16, 16, 3, groups=16))
    assert calls(equal(net)) == {"Conv2d": 2, "index_select": 1}


def test_a_norm_behind_grouped_transposed_convolution_stays_apart() -> None:
    net = Net(lambda n, x: n.b(n.a(x)), a=nn.ConvTranspose2d(8, 8, 3, groups=2), b=nn.BatchNorm2d(8))
    assert calls(equal(net)) == {"ConvTranspose2d": 1, "Conv2d": 1}


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.AvgPool2d(3, 2), nn.Upsample(scale_factor=2)], ids=repr)
def test_pools_keep_the_order(pool: nn.Module) -> None:
    net = Net(lambda n, x: n.c(n.pool(join(n.a(x), n.b(x)))), a=conv(), b=conv(), c=conv(16), pool=pool)
    assert "index_select" not in calls(equal(net))


@pytest.mark.parametrize(
    "head",
    [
        lambda x: x.mean((2, 3)),
        lambda x: torch.flatten(F.adaptive_avg_pool2d(x, 1), 1),
        lambda x: x.flatten(1)[:, :0].sum() + x.mean((-1, -2), keepdim=True).flatten(1).relu(),
        lambda x: F.adaptive_avg_pool2d(x, 2).flatten(1),
    ],
    ids=["mean", "pooled", "both", "with positions"],
)
def test_a_linear_head_reads_the_stored_order(head: Callable[[Tensor], Tensor]) -> None:
    channels = 16 * head(torch.zeros(1, 16, 4, 4)).shape[1] // 16
    net = Net(
        lambda n, x: n.head(head(join(n.a(x), n.b(x)))), a=conv(), b=conv(), head=nn.Linear(channels, 5)
    )
    equal(net)


def test_the_heads_of_classifiers_move_no_channels() -> None:
    def use(n: Net, x: Tensor) -> Any:
        x = join(n.a(x), n.b(x))
        pooled = n.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return pooled + n.head(x.mean((2, 3))) + n.large(F.adaptive_avg_pool2d(x, 2).relu().flatten(1))

    net = Net(use, a=conv(), b=conv(), head=nn.Linear(16, 5), large=nn.Linear(64, 5))
    assert "index_select" not in calls(equal(net))


def test_a_linear_layer_on_another_axis_reads_the_natural_order() -> None:
    net = Net(lambda n, x: n.head(join(n.a(x), n.b(x))), a=conv(), b=conv(), head=nn.Linear(6, 5))
    assert calls(equal(net))["index_select"] == 1


def test_changes_in_place_reach_every_later_reader() -> None:
    def use(n: Net, x: Tensor) -> Any:
        y = join(n.a(x), n.b(x))
        z = n.relu(y)  # in place: y too
        y += 1
        return n.c(y + z) + F.relu(n.c(z), inplace=True)

    equal(Net(use, a=conv(), b=conv(), c=conv(16), relu=nn.ReLU(inplace=True)))


def test_a_repeated_image_is_read_again() -> None:
    net = Net(lambda n, x: n.b(n.a(x.repeat(1, 3, 1, 1)).repeat(1, 2, 1, 1).relu()), a=conv(24), b=conv(16))
    assert calls(equal(net)) == {"relu": 1, "Conv2d": 2}


def test_a_norm_of_repeated_channels_reads_them_again() -> None:
    net = Net(lambda n, x: n.b(x.repeat(1, 2, 1, 1)), b=nn.BatchNorm2d(16))
    assert calls(equal(net)) == {"Conv2d": 1}


def test_a_concatenation_of_repeated_channels_holds_them_all() -> None:
    equal(Net(lambda n, x: n.b(torch.cat([n.a(x).repeat(1, 2, 1, 1), x], 1)), a=conv(), b=conv(24)))
    equal(Net(lambda n, x: n.b(join(n.a(x).repeat(1, 2, 1, 1), n.a(x))), a=conv(), b=conv(24)))


def test_a_repetition_in_space_stays() -> None:
    net = Net(lambda n, x: n.b(n.a(x).repeat(1, 2, 2, 1)), a=conv(), b=conv(16))
    assert calls(equal(net))["repeat"] == 1


# Where axes or widths differ, torch's rules of broadcasting decide, and the fold must not presume

WIDE = torch.randn(2, 8, 2, 16, dtype=torch.float64)  # as wide as there are channels behind the join


def test_a_vector_is_not_added_along_the_channels_of_a_map() -> None:
    def use(n: Net, x: Tensor) -> Any:
        joined = join(n.a(x), n.b(x))
        return n.c(joined + joined.mean((2, 3))) + n.c(joined + n.d(x.mean((2, 3))))

    equal(Net(use, a=conv(), b=conv(), c=conv(16), d=nn.Linear(8, 16)), WIDE)


def test_one_channel_spreads_over_all() -> None:
    def use(n: Net, x: Tensor) -> Any:
        return n.c(join(n.one(x) + n.a(x), n.b(x) * n.one(x)))

    equal(Net(use, a=conv(), b=conv(), one=nn.Conv2d(8, 1, 3, padding=1), c=conv(16)))


def test_vectors_that_are_not_read_by_linear_layers_are_in_natural_order() -> None:
    def use(n: Net, x: Tensor) -> Any:
        pooled = F.adaptive_avg_pool2d(join(n.a(x), n.b(x)), 2)
        soft = pooled.flatten(1).relu().softmax(1)
        return n.head(soft[:, :3]) + n.head(pooled.flatten(1)[:, 5:8])

    equal(Net(use, a=conv(), b=conv(), head=nn.Linear(3, 5)))


def test_means_over_other_axes_are_of_the_natural_order() -> None:
    net = Net(lambda n, x: n.c(join(n.a(x), n.b(x)).mean((1, 3))), a=conv(), b=conv(), c=nn.Linear(6, 5))
    equal(net)


def test_a_norm_of_sequences_is_not_absorbed_by_a_linear_layer() -> None:
    """It normalises axis 1; the layer's outputs are on axis 2."""
    net = Net(lambda n, x: n.norm(n.a(x.flatten(2))), a=nn.Linear(36, 8), norm=nn.BatchNorm1d(8))
    assert calls(equal(net))["BatchNorm1d"] == 1


def test_what_was_read_before_a_change_in_place_keeps_its_value() -> None:
    def use(n: Net, x: Tensor) -> Any:
        y = n.a(x)
        z = y * 2
        y.relu_()
        return z + y

    equal(Net(use, a=conv()))


def test_the_result_holds_no_layer_of_ours() -> None:
    folded = fold(Net(lambda n, x: n.norm(n.conv(x)), conv=conv(), norm=norm()))
    assert not [m for m in folded.modules() if "quatserve" in type(m).__module__]
    assert {p.dtype for p in folded.parameters()} == {torch.float64}
