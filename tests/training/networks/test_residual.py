"""The networks: the paper's nine counts, shapes, every algebra, encodings, dilation and the way they join."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from quatserve.training.networks.residual import (
    Block,
    Components,
    GreyComponents,
    Network,
    NetworkConfig,
    ProjectionBlock,
    Task,
)
from quatserve.training.nn.algebra import ALGEBRAS, COMPLEX, QUATERNION
from quatserve.training.nn.conv import HypercomplexConv2d
from quatserve.training.nn.norm import HypercomplexBatchNorm2d
from tests.training.oracles import assert_close, multiply, randn

every_algebra = pytest.mark.parametrize("algebra", ALGEBRAS)


def counted(network: nn.Module) -> int:
    """Parameters and running statistics, a covariance by its distinct entries."""
    total = sum(parameter.numel() for parameter in network.parameters())
    for name, buffer in network.state_dict().items():
        if name.endswith("running_mean"):
            total += buffer.numel()
        elif name.endswith("running_covariance"):
            channels, d, _ = buffer.shape
            total += channels * d * (d + 1) // 2
    return total


def trainable(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("algebra", "shallow", "deep", "road"),
    [
        ("real", 508_932, 3_619_844, 507_029),
        ("complex", 257_412, 1_823_620, 254_037),
        ("quaternion", 133_560, 932_792, 128_701),
    ],
)
def test_the_nine_counts_of_the_paper(algebra: str, shallow: int, deep: int, road: int) -> None:
    assert counted(Network(NetworkConfig(algebra=algebra))) == shallow
    assert counted(Network(NetworkConfig(algebra=algebra, depth=10))) == deep
    assert counted(Network(NetworkConfig(algebra=algebra, task="segmentation", whiten=False))) == road


def test_counts_beside_the_papers() -> None:
    assert trainable(Network(NetworkConfig())) == 130_948
    assert counted(Network(NetworkConfig(task="segmentation"))) == 132_399
    assert counted(Network(NetworkConfig(classes=100))) == 145_170


@pytest.mark.parametrize(("height", "width"), [(32, 32), (1, 1), (5, 9), (13, 8)])
@pytest.mark.parametrize("task", ["classification", "segmentation"])
@every_algebra
def test_shapes_and_gradients(algebra: str, task: Task, height: int, width: int) -> None:
    network = Network(NetworkConfig(algebra=algebra, task=task, depth=1, width=8, classes=7))
    y = network(randn(2, 3, height, width, dtype=torch.float32))
    assert y.shape == ((2, 7) if task == "classification" else (2, 1, height, width))
    y.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    if height * width > 100:
        assert all(
            parameter.grad.abs().max() > 0 for parameter in network.parameters() if parameter.grad is not None
        )


@every_algebra
def test_channels_last_gives_the_same(algebra: str) -> None:
    network = Network(NetworkConfig(algebra=algebra, depth=1, width=8)).double()
    x = randn(2, 3, 9, 9)
    expected = network(x)
    network = network.to(torch.device("cpu"), memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert_close(network(x.contiguous(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize(("depth", "blocks"), [(2, 6), (10, 30)])
def test_blocks_of_each_stage(depth: int, blocks: int) -> None:
    network = Network(NetworkConfig(depth=depth))
    assert len(network.blocks) == blocks
    kinds = ["P" if isinstance(block, ProjectionBlock) else "R" for block in network.blocks]
    assert "".join(kinds) == "R" * depth + ("P" + "R" * (depth - 1)) * 2
    strides = [block.conv1.stride for block in network.blocks if isinstance(block, Block)]
    assert strides == [(2, 2) if kind == "P" else (1, 1) for kind in kinds]


def test_a_road_network_keeps_the_size_and_dilates() -> None:
    dilations = (1, 2, 4, 8, 4, 2)
    network = Network(NetworkConfig(task="segmentation", width=8, dilations=dilations))
    for block, dilation in zip(network.blocks, dilations, strict=True):
        assert isinstance(block, Block)
        assert block.conv1.dilation == block.conv2.dilation == (dilation, dilation)
        assert block.conv1.stride == (1, 1)
    assert network(randn(1, 3, 7, 11, dtype=torch.float32)).shape == (1, 1, 7, 11)


@pytest.mark.parametrize(("dilations", "reach"), [((1, 1, 1), 14), ((1, 2, 4), 30)])
def test_dilation_widens_the_receptive_field(dilations: tuple[int, ...], reach: int) -> None:
    """The stem reaches one pixel to either side, a block twice its dilation."""
    config = NetworkConfig(task="segmentation", depth=1, width=8, encoding="grey", dilations=dilations)
    torch.manual_seed(0)
    network = Network(config).eval()
    x = randn(
        64, 3, 1, 81, dtype=torch.float32
    ).requires_grad_()  # many: a rectifier may shut off one of them
    network(x)[:, 0, 0, 40].sum().backward()
    assert x.grad is not None
    touched = x.grad.abs().sum((0, 1, 2)).nonzero()
    assert int(touched.max() - touched.min()) == reach


def test_regular_block_is_the_papers() -> None:
    block, x = Block(COMPLEX, 4).double(), randn(2, 4, 5, 5)
    y = block.conv1(F.relu(block.norm1(x)))
    assert_close(block(x), x + block.conv2(F.relu(block.norm2(y))))


def test_projection_block_strides_and_takes_the_raw_input() -> None:
    block, x = ProjectionBlock(QUATERNION, 4, stride=2).double(), randn(2, 4, 5, 5)
    y = block(x)
    assert y.shape == (2, 8, 3, 3)
    weight = block.shortcut.weight.detach().flatten().tolist()
    for n in range(2):
        pixel = multiply(
            weight, x[n, :, 2, 4].tolist()
        )  # the strided pixel (1, 2), not normalised, not rectified
        assert_close(y[n, 0::2, 1, 2], torch.tensor(pixel, dtype=torch.float64))
    residual = block.conv2(F.relu(block.norm2(block.conv1(F.relu(block.norm1(x))))))
    assert_close(y[:, 1::2], residual)


@pytest.mark.parametrize(
    ("algebra", "blocks"), [("real", 1), ("complex", 1), ("quaternion", 3), ("octonion", 7)]
)
def test_learned_components(algebra: str, blocks: int) -> None:
    """Each block is BN-ReLU-Conv-BN-ReLU-Conv of the image alone, and the image comes first."""
    layer, image = Components(ALGEBRAS[algebra], whiten=True).double(), randn(3, 3, 6, 7)
    y = layer(image)
    assert y.shape[1] == layer.out_channels == 3 * (blocks + 1)
    assert torch.equal(y[:, :3], image)
    for block in range(blocks):
        part = slice(3 * block, 3 * block + 3)
        x = F.batch_norm(image, None, None, training=True, eps=1e-4)
        x = F.conv2d(F.relu(x), layer.conv1.weight[part], padding=1)
        x = F.batch_norm(x, None, None, training=True, eps=1e-4)
        x = F.conv2d(F.relu(x), layer.conv2.weight[part], padding=1)
        assert_close(y[:, 3 + 3 * block : 6 + 3 * block], x)


def test_learned_components_start_as_he_normal() -> None:
    torch.manual_seed(0)
    weights = torch.cat([Components(QUATERNION, whiten=True).conv1.weight.flatten() for _ in range(60)])
    assert weights.std().item() == pytest.approx((2 / 27) ** 0.5, rel=0.03)


def test_grey_and_rgb_make_one_quaternion() -> None:
    red, green, blue = 0.2, 0.4, -0.6
    image = torch.tensor([red, green, blue]).reshape(1, 3, 1, 1)
    parts = GreyComponents()(image).flatten().tolist()
    assert parts == pytest.approx([0.299 * red + 0.587 * green + 0.114 * blue, red, green, blue])
    network = Network(NetworkConfig(encoding="grey", depth=1, width=8))
    assert isinstance(network.stem, HypercomplexConv2d)
    assert network.stem.weight.shape == (8, 1, 3, 3)
    assert network(randn(2, 3, 8, 8, dtype=torch.float32)).shape == (2, 10)


def test_no_convolution_has_a_bias_and_every_norm_the_papers_constants() -> None:
    for task in ("classification", "segmentation"):
        network = Network(NetworkConfig(task=task))
        biases = [name for name, _ in network.named_parameters() if name.endswith("bias")]
        assert len(biases) == 1
        assert biases[0].startswith("head.")
        norms = [m for m in network.modules() if isinstance(m, HypercomplexBatchNorm2d)]
        assert {(m.eps, m.momentum) for m in norms} == {(1e-4, 0.1)}


def test_initialisation_is_torchs_seed() -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(Network(NetworkConfig(depth=1, width=8)).parameters())

    assert all(torch.equal(a, b) for a, b in zip(weights(1), weights(1), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(1), weights(2), strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algebra": "sedenion"}, r"'sedenion' is unknown: use one of real, complex, quaternion, octonion"),
        ({"width": 30}, r"30 channels .* multiple of 4"),
        ({"depth": 0}, r"depth 0 is too small"),
        ({"encoding": "grey", "algebra": "complex"}, r"needs quaternions, not complex"),
        ({"dilations": (1, 2)}, r"2 dilations for 6 blocks"),
        ({"dilations": (1, 1, 1, 1, 1, 0)}, r"dilation 0 is too small"),
        ({"classes": 0}, r"0 classes"),
    ],
)
def test_impossible_networks_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NetworkConfig(**options)  # type: ignore[arg-type]
