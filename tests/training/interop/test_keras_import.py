"""The authors' files: a network of ours, written in their layout, comes back with the same outputs."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

from quatserve.training.commands.main import main
from quatserve.training.loop.run import load_network
from quatserve.training.networks.residual import Network, NetworkConfig
from tests.full_disk import full_disk
from tests.training.keras_layout import KerasWriter, keras_layers

HEIGHT, WIDTH = 12, 40


def road_network(algebra: str, *, depth: int = 2) -> Network:
    """With every weight and statistic away from its initial value, so that each must be copied."""
    torch.manual_seed(3)
    network = Network(
        NetworkConfig(algebra=algebra, task="segmentation", depth=depth, width=8, whiten=False)
    ).eval()
    for name, tensor in network.state_dict().items():
        if name.endswith("running_covariance"):
            tensor.uniform_(0.5, 2)
        elif not name.endswith("weight"):
            tensor.normal_(0, 0.3)
    return network


def imported_output(run: Path, image: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = load_network(run)[0](image)
    return output


@pytest.mark.parametrize("algebra", ["quaternion", "complex"])
@pytest.mark.parametrize("epsilon", [1e-4, 1e-3])
def test_an_imported_network_gives_the_same_outputs(tmp_path: Path, algebra: str, epsilon: float) -> None:
    network = road_network(algebra)
    layers = keras_layers(network, epsilon=epsilon)
    names = list(layers.layers)
    layers.write(
        tmp_path / "file.h5", height=HEIGHT, width=WIDTH, order=sorted(names)
    )  # _10 before _2: numbers decide, not order
    assert main(["import-keras", str(tmp_path / "file.h5"), "--out", str(tmp_path / "run")]) == 0
    image = torch.randn(1, 3, HEIGHT, WIDTH)
    with torch.no_grad():
        expected = network(image)
    torch.testing.assert_close(imported_output(tmp_path / "run", image), expected)


def test_every_layer_of_the_file_matters(tmp_path: Path) -> None:
    network = road_network("quaternion", depth=1)
    image = torch.randn(1, 3, HEIGHT, WIDTH)
    with torch.no_grad():
        expected = network(image)
    for i, (name, weights) in enumerate(keras_layers(network).layers.items()):
        layers = keras_layers(network)
        layers.layers[name] = {weight: value * np.float32(1.5) for weight, value in weights.items()}
        layers.write(tmp_path / f"{i}.h5", height=HEIGHT, width=WIDTH)
        main(["import-keras", str(tmp_path / f"{i}.h5"), "--out", str(tmp_path / str(i))])
        assert not torch.allclose(imported_output(tmp_path / str(i), image), expected), name


def test_the_run_says_where_it_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keras_layers(road_network("quaternion")).write(tmp_path / "theirs.h5", height=HEIGHT, width=WIDTH)
    main(["import-keras", str(tmp_path / "theirs.h5"), "--out", str(tmp_path / "run")])
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["recipe"]["name"] == "published-kitti-road-quaternion"
    assert (config["recipe"]["height"], config["recipe"]["width"]) == (HEIGHT, WIDTH)
    assert config["recipe"]["network"]["whiten"] is False
    assert config["versions"]["keras"] == "2.1.2"
    assert "published-kitti-road-quaternion" in capsys.readouterr().out


def without(layers: KerasWriter, name: str) -> KerasWriter:
    del layers.layers[name]
    return layers


def with_gamma(layers: KerasWriter) -> KerasWriter:
    layers.layers["quaternion_batch_normalization_2"]["gamma_rr"] = np.ones(2, np.float32)
    return layers


def with_kernel(layers: KerasWriter, shape: tuple[int, ...], number: int = 3) -> KerasWriter:
    layers.layers[f"quaternion_conv2d_{number}"]["kernel"] = np.zeros(shape, np.float32)
    return layers


def without_kernel(layers: KerasWriter) -> KerasWriter:
    layers.layers["quaternion_conv2d_1"] = {"core": np.zeros((3, 3, 3, 8), np.float32)}
    return layers


def only_plain(layers: KerasWriter) -> KerasWriter:
    layers.layers = {name: w for name, w in layers.layers.items() if not name.startswith("quaternion")}
    return layers


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: without(w, "quaternion_conv2d_4"), "14 layers quaternion_conv2d where"),
        (lambda w: without(w, "batch_normalization_6"), "5 layers batch_normalization where 6 are expected"),
        (with_gamma, "quaternion_batch_normalization_2 has a gamma"),
        (lambda w: with_kernel(w, (3, 3, 5, 8)), "blocks.0.conv2.weight"),
        (lambda w: with_kernel(w, (3, 3, 5, 7), 1), "7"),
        (without_kernel, "do not fit"),
        (only_plain, "no quaternion_conv2d or complex_conv2d"),
    ],
)
def test_other_networks_are_refused_on_one_line(tmp_path, capsys, spoil, message) -> None:  # type: ignore[no-untyped-def]
    spoil(keras_layers(road_network("quaternion"))).write(tmp_path / "file.h5", height=HEIGHT, width=WIDTH)
    assert main(["import-keras", str(tmp_path / "file.h5"), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_no_keras_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.h5").write_text("not HDF5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = 1
    for name in ("text.h5", "other.h5", "absent.h5"):
        assert main(["import-keras", str(tmp_path / name), "--out", str(tmp_path / "run")]) == 2
        error = capsys.readouterr().err
        assert f"{name} cannot be read as a network that Keras 2 saved" in error
        assert error.count("\n") == 1


def test_a_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keras_layers(road_network("complex")).write(tmp_path / "file.h5", height=HEIGHT, width=WIDTH)
    arguments = ["import-keras", str(tmp_path / "file.h5"), "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_an_import_that_found_the_disk_full_can_be_tried_again(tmp_path: Path) -> None:
    keras_layers(road_network("complex")).write(tmp_path / "file.h5", height=HEIGHT, width=WIDTH)
    arguments = ["import-keras", str(tmp_path / "file.h5"), "--out", str(tmp_path / "run")]
    with full_disk(10_000):
        assert main(arguments) == 2
    assert main(arguments) == 0
