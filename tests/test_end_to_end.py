"""Two training steps, export, serve over a real socket: the answer is the trained network's."""

import dataclasses
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from quatserve.export.commands import main as export
from quatserve.training.data.kitti import open_rgb, target_of
from quatserve.training.evaluation.report import evaluate_run, road_split
from quatserve.training.evaluation.road_metrics import road_scores, value_counts
from quatserve.training.loop.fit import fit
from quatserve.training.loop.ranks import Ranks
from quatserve.training.loop.run import load_network
from quatserve.training.networks.residual import Network
from quatserve.training.recipes.schema import Recipe, Segmentation
from tests.export.tiny import classifier_recipe, small_cifar
from tests.service.harness import RunningService, encoded, noise
from tests.training.tiny_data import road_recipe, write_frames

INT8_TOLERANCE = 0.15  # of a network trained for two steps: its answers are near each other


def trained(recipe: Recipe, data: Path, run: Path) -> Network:
    """The network of a run of two steps, as anybody would load it."""
    device = torch.device("cpu")
    fit(recipe, data, run, seed=0, device=device, compiled=False, resume=False, ranks=Ranks())
    network, _ = load_network(run)
    assert isinstance(network, Network)
    return network


def exported(run: Path, data: Path, out: Path) -> None:
    arguments = ["build", str(run), "--data", str(data), "--out", str(out), "--max-loss", "100"]
    assert export(arguments) == 0
    assert export(["verify", str(out)]) == 0


@contextmanager
def served(models: Path, precision: str) -> Iterator[httpx.Client]:
    service = RunningService(models, precision=precision, threads=1)
    try:
        ready = service.client.get("/readyz").json()
        assert [model["precision"] for model in ready["models"]] == [precision]
        yield service.client
    finally:
        assert service.stop() == 0


@torch.no_grad()
def logits(network: Network, picture: NDArray[np.uint8]) -> torch.Tensor:
    """The trained network itself, unfolded, in float64, on one picture of its own size."""
    image = torch.from_numpy(picture).permute(2, 0, 1)[None].double() / 127.5 - 1
    found: torch.Tensor = network.double()(image)[0]
    return found


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Path]:
    root = tmp_path_factory.mktemp("classifier")
    with pytest.MonkeyPatch.context() as patch:
        small_cifar(patch, root / "data")
        recipe = classifier_recipe(epochs=2, batch_size=8)  # 15 images: one step an epoch
        network = trained(recipe, root / "data", root / "run")
        exported(root / "run", root / "data", root / "models" / "tiny" / "1")
    return network, root / "models"


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("int8", INT8_TOLERANCE)])
def test_classify_answers_with_the_trained_network(
    classifier: tuple[Network, Path], precision: str, tolerance: float
) -> None:
    network, models = classifier
    with served(models, precision) as client:
        for seed in range(3):
            picture = noise(32, 32, seed)
            response = client.post("/classify?top_k=10", files={"file": encoded(picture)})
            answer = response.raise_for_status().json()["results"][0]["predictions"]
            found = {prediction["label"]: prediction["probability"] for prediction in answer}
            expected = logits(network, picture).softmax(0)
            assert found == pytest.approx(
                {f"class_{i}": float(p) for i, p in enumerate(expected)}, abs=tolerance
            )


def test_segment_answers_with_the_trained_network(tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    write_frames(data)
    recipe = dataclasses.replace(road_recipe(), epochs=1, batch_size=3)  # 6 frames: two steps
    network = trained(recipe, data, run)
    exported(run, data, tmp_path / "models" / "tiny-road" / "1")
    picture = noise(40, 12, 5)
    expected = (255 * logits(network, picture)[0].sigmoid()).round().numpy()
    with served(tmp_path / "models", "fp32") as client:
        response = client.post("/segment?output=heatmap", files={"file": encoded(picture)})
        found = np.asarray(Image.open(io.BytesIO(response.raise_for_status().content)))
        mask = client.post("/segment", files={"file": encoded(picture)}).raise_for_status()
    assert np.abs(found - expected).max() <= 1
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(mask.content))) == 255, found >= 128)


def test_masks_over_http_score_what_evaluate_says(tmp_path: Path) -> None:
    """The IoU of the frames held out, from masks that a client got, and from the trained network."""
    data, run = tmp_path / "data", tmp_path / "run"
    write_frames(data, each=4, size=(124, 38))
    recipe = road_recipe(epochs=6, batch_size=3, task=Segmentation())
    trained(recipe, data, run)
    exported(run, data, tmp_path / "models" / "tiny-road" / "1")
    report = evaluate_run(run, data, split=None, threshold=0.5, device=torch.device("cpu"), progress=False)[
        "scores"
    ]["frame_size"]
    counts = np.zeros((2, 256), np.int64)
    with served(tmp_path / "models", "fp32") as client:
        for frame in road_split(recipe, data, "held-out"):
            answer = client.post("/segment", files={"file": frame.image.read_bytes()}).raise_for_status()
            mask = np.asarray(Image.open(io.BytesIO(answer.content)))
            counts += value_counts(mask, target_of(open_rgb(frame.truth)))
    found = road_scores(counts, 0.5)
    assert 0.2 < found.iou < 1  # neither nothing nor everything: the comparison says something
    assert found.iou == pytest.approx(report["iou"], abs=0.002)
