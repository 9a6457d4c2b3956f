"""Artifacts of anybody's module: what they state, what they leave out, and the arguments that are refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quatserve.export import build
from quatserve.export.proof.runtime import predictor_of
from quatserve.export.proof.verify import verify
from quatserve.nn import QUATERNION, HypercomplexBatchNorm2d, HypercomplexConv2d, join_components
from quatserve.service.artifact import Precision, read_description
from quatserve.training.errors import UserError
from tests.export.folding.networks import randomise
from tests.export.tiny import pictures

LABELS = ("cat", "dog", "neither")
HEIGHT, WIDTH = 20, 28
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Body(nn.Module):
    """Quaternion and torch layers, a join, and a head for vectors or maps."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.branch = HypercomplexConv2d(16, 16, 3, padding=1, bias=False, algebra=QUATERNION)
        self.white = HypercomplexBatchNorm2d(32, algebra=QUATERNION)
        self.mix = HypercomplexConv2d(32, 16, 3, padding=1, bias=False, algebra=QUATERNION)
        self.head = head

    def forward(self, image: Tensor) -> Tensor:
        x = nn.functional.hardswish(self.norm(self.stem(image)))
        x = join_components(QUATERNION, x, self.branch(x))
        return self.head(self.mix(self.white(x).relu()))  # type: ignore[no-any-return]


def classifier(classes: int = 3) -> nn.Module:
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(16, classes))
    return randomise(Body(head))


def segmenter(maps: int) -> nn.Module:
    torch.manual_seed(0)
    return randomise(Body(nn.Conv2d(16, maps, 1)))


def quietly(module: nn.Module, out: Path, **changes: Any) -> Any:
    arguments: dict[str, Any] = {"labels": LABELS, "size": (HEIGHT, WIDTH), "say": lambda _: None}
    return build(module, out, **arguments | changes)


def served(out: Path, images: NDArray[np.uint8], precision: str = "model.onnx") -> NDArray[Any]:
    name = read_description(out).output_name
    return predictor_of((out / precision).read_bytes(), name)(images)


@torch.no_grad()
def logits(module: nn.Module, images: NDArray[np.uint8]) -> Tensor:
    """By the definition: (pixel / 255 - mean) / std."""
    x = torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255
    mean, std = (torch.tensor(value).double().reshape(3, 1, 1) for value in (MEAN, STD))
    found: Tensor = module.double()((x - mean) / std)
    return found


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "pets" / "1"
    quietly(classifier(), out, mean=MEAN, std=STD, calibration=pictures(40, HEIGHT, WIDTH), max_loss=100)
    return out


def test_every_precision_is_served_as_the_module_answers(artifact: Path) -> None:
    images = pictures(5, HEIGHT, WIDTH, seed=1)
    expected = logits(classifier(), images).softmax(1).numpy()
    np.testing.assert_allclose(served(artifact, images), expected, atol=1e-5)
    np.testing.assert_allclose(served(artifact, images, "model.fp16.onnx"), expected, atol=0.02)
    np.testing.assert_allclose(served(artifact, images, "model.int8.onnx"), expected, atol=0.1)
    assert verify(artifact).keys() == set(Precision)


def test_what_nobody_knows_is_absent(artifact: Path) -> None:
    """From model.json and from the card."""
    text, card = (artifact / "model.json").read_text(), (artifact / "README.md").read_text()
    for field in (
        "training",
        "network",
        "algebra",
        "stem_stride",
        "calibration",
        "recipe",
        "epochs",
        "dataset",
    ):
        assert f'"{field}"' not in text
    assert '"confidence_threshold": null' in text
    description = read_description(artifact)
    assert description.labels == LABELS
    assert (description.height, description.width) == (HEIGHT, WIDTH)
    assert {(m.name, m.split, m.samples) for m in description.metrics} == {("agreement", "comparison", 20)}
    for word in ("None", "Gaudet", "trained", "Licence", "CIFAR", "$"):
        assert word not in card
    for word in (
        "Sorts pictures into 3 classes",
        f"{description.parameters.total:,} parameters",
        "## Limits",
    ):
        assert word in card


def test_the_probe_holds_none_of_the_users_pictures(artifact: Path) -> None:
    with np.load(artifact / "probe.npz", allow_pickle=False) as probe:
        ours = pictures(40, HEIGHT, WIDTH)
        assert not any(np.array_equal(a, b) for a in probe["images"] for b in ours)


def test_parameters_and_work_are_counted(artifact: Path) -> None:
    description, module = read_description(artifact), classifier()
    trainable = sum(parameter.numel() for parameter in module.parameters())
    running = 2 * 16 + 32 + 8 * 10  # torch's norm; means and covariances of ours
    assert (description.parameters.trainable, description.parameters.total) == (
        trainable,
        trainable + running,
    )
    layers = 3 * 16 * 9 + 16 * 16 * 9 + 32 * 32 + 32 * 16 * 9  # the norm behind the join is one of 1 x 1
    assert description.multiply_accumulates == HEIGHT * WIDTH * layers + 16 * 3


def test_several_maps_have_a_softmax_and_a_palette(tmp_path: Path) -> None:
    module, images = segmenter(3), pictures(3, HEIGHT, WIDTH, seed=1)
    labels = ("background", "road", "car")
    description = quietly(
        module,
        tmp_path / "street" / "1",
        task="segmentation",
        labels=labels,
        mean=MEAN,
        std=STD,
        precisions=[Precision.FP32],
    )
    found = served(tmp_path / "street" / "1", images)
    expected = (255 * logits(module, images).softmax(1)).round().numpy()
    assert found.shape == (3, 3, HEIGHT, WIDTH)
    assert np.abs(found.astype(int) - expected).max() <= 1
    assert description.foreground == ("road", "car")
    assert description.palette == ((0, 0, 0), (128, 0, 0), (0, 128, 0))
    assert (description.threshold, description.resize) == (None, "stretch")


def test_a_single_map_has_a_sigmoid_and_a_threshold(tmp_path: Path) -> None:
    module, images = segmenter(1), pictures(3, HEIGHT, WIDTH, seed=1)
    out = tmp_path / "road" / "1"
    description = quietly(
        module,
        out,
        task="segmentation",
        labels=["road"],
        mean=MEAN,
        std=STD,
        threshold=0.4,
        precisions=[Precision.FP32],
    )
    expected = (255 * logits(module, images).sigmoid()).round().numpy()
    assert np.abs(served(out, images).astype(int) - expected).max() <= 1
    assert (description.foreground, description.threshold, description.palette) == (("road",), 0.4, ())
    assert "Finds road in pictures" in (out / "README.md").read_text()


def test_without_calibration_images_there_is_no_int8(tmp_path: Path) -> None:
    lines: list[str] = []
    description = quietly(classifier(), tmp_path / "pets" / "1", say=lines.append)
    assert [file.precision for file in description.files] == [Precision.FP32, Precision.FP16]
    assert "int8: left out, no calibration images were given" in lines
    with pytest.raises(UserError, match="int8 cannot be built: no calibration images"):
        quietly(classifier(), tmp_path / "pets" / "2", precisions=tuple(Precision))


def test_a_network_without_wide_layers_has_no_int8(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 18 * 26, 3)).eval()
    lines: list[str] = []
    quietly(module, tmp_path / "pets" / "1", say=lines.append, calibration=pictures(4, HEIGHT, WIDTH))
    assert "int8: left out, no convolution of the network is wide enough" in lines


class Doubled(nn.Module):
    """Traced for one batch alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)).reshape(1, -1)


class Cancelling(nn.Module):
    """Its float32 keeps a digit or two of what float64 computes."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.mean((2, 3)) + 1e6) - 1e6


def bad(module: nn.Module, value: float) -> nn.Module:
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] = value
    return module


@pytest.mark.parametrize(
    ("module", "changes", "message"),
    [
        (
            classifier(),
            {"labels": ("cat", "dog")},
            "the network returns 3 classes, and 2 labels are given (cat, dog)",
        ),
        (classifier(), {"labels": ("cat", "cat", "dog")}, "3 labels, 2 of them distinct"),
        (classifier(), {"labels": ("cat", "dog", "a\nb")}, r"label 'a\nb' is not one line of text"),
        (
            classifier(),
            {"task": "detection"},
            "task 'detection' is unknown: use classification or segmentation",
        ),
        (classifier(), {"task": "segmentation"}, "segmentation needs [1, maps, height, width]"),
        (segmenter(3), {}, "classification needs [1, classes]"),
        (nn.Conv2d(3, 3, 3, stride=2), {"task": "segmentation"}, "maps of 9 x 13 for an image of 20 x 28"),
        (classifier(), {"size": 0}, "size 0 x 0 is too small"),
        (nn.Sequential(nn.Flatten(), nn.Linear(7, 3)), {}, "the network fails on an image of 20 x 28"),
        (
            classifier(),
            {"mean": (123.7, 116.3, 103.5)},
            "mean (123.7, 116.3, 103.5) is not three numbers within",
        ),
        (classifier(), {"std": (0.2, 0.2, 0.0)}, "std (0.2, 0.2, 0.0) holds a zero"),
        (classifier(), {"resize": "crop"}, "resize 'crop' is unknown: use centre-square or stretch"),
        (classifier(), {"threshold": 1.5}, "threshold 1.5 is not a probability"),
        (classifier(), {"palette": [(0, 0, 0)]}, "palette has 1 colours for 0 maps"),
        (classifier(), {"calibration": pictures(4, 8, 8)}, "calibration is uint8 [4, 8, 8, 3]"),
        (classifier(), {"calibration": pictures(1, HEIGHT, WIDTH)}, "give 2 or more images"),
        (classifier().train(), {}, "it is in training mode"),
        (bad(classifier(), float("nan")), {}, "stem.weight holds numbers that are not finite"),
        (Doubled(), {}, "for a batch of images: each must have a row of its own"),
        (Cancelling(), {}, "the fp32 graph differs from the network by"),
    ],
    ids=lambda value: "" if isinstance(value, nn.Module | str) else ",".join(value),
)
def test_bad_arguments_are_one_line_and_leave_nothing(
    tmp_path: Path, module: nn.Module, changes: dict[str, Any], message: str
) -> None:
    module = module if "training mode" in message else module.eval()
    with pytest.raises(UserError) as raised:
        quietly(module, tmp_path / "models" / "pets" / "1", **changes)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "models").exists()


def test_the_package_offers_functions_and_loads_torch_when_they_are_used() -> None:
    code = (
        "import sys, quatserve.export as e, quatserve.export.commands; assert 'torch' not in sys.modules; "
        "from quatserve.export import build, fold; assert callable(build) and callable(fold)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
