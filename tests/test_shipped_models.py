"""The models in models/, asked over HTTP about the repository's own samples."""

import io
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from quatserve.service.samples.render_road import (
    HALF_ROAD_M,
    HEIGHT,
    HORIZON,
    KERB_M,
    PAVEMENT_M,
    WIDTH,
    on_the_ground,
)
from tests.service.harness import REPOSITORY, RunningService

SAMPLES = REPOSITORY / "service" / "samples"
PICTURES = sorted(SAMPLES.glob("*.png"))
AHEAD_M = 40  # as far as anyone would mark the rendered road by hand
Region = NDArray[np.bool_]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    service = RunningService(REPOSITORY / "models", precision="fp32", threads=1)
    yield service.client
    assert service.stop() == 0


@pytest.fixture(scope="module")
def mask(client: httpx.Client) -> Region:
    answer = client.post("/segment", files={"file": (SAMPLES / "road.jpg").read_bytes()}).raise_for_status()
    found: Region = np.asarray(Image.open(io.BytesIO(answer.content))) == 255
    return found


def rendered() -> tuple[Region, Region, Region]:
    """Road, pavement, and all ground near enough to count, as `render_road` painted them."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)
    offset, ahead = on_the_ground(rows, columns)
    across = np.abs(offset)
    near: Region = (rows > HORIZON + 2) & (ahead < AHEAD_M)
    pavement = (across > HALF_ROAD_M + KERB_M) & (across < HALF_ROAD_M + KERB_M + PAVEMENT_M)
    return near & (across < HALF_ROAD_M), near & pavement, near


def test_cifar_images_are_named(client: httpx.Client) -> None:
    """The first test image of every class, of which it takes one for another: not chosen for its sake."""
    assert len(PICTURES) == 10
    named = {}
    for picture in PICTURES:
        answer = client.post("/classify?top_k=1", files={"file": picture.read_bytes()}).raise_for_status()
        assert answer.json()["model"] == "cifar10-quaternion"
        named[picture.stem] = answer.json()["results"][0]["predictions"][0]["label"]
    assert named == {picture.stem: picture.stem for picture in PICTURES} | {"airplane": "ship"}


def test_the_road_is_found(mask: Region) -> None:
    """The painted shadow of a tree across it included."""
    road, _, near = rendered()
    assert np.count_nonzero(mask & road) / np.count_nonzero((mask | road) & near) > 0.85


def test_pavement_is_not_taken_for_road(mask: Region) -> None:
    _, pavement, _ = rendered()
    assert np.count_nonzero(mask & pavement) / np.count_nonzero(pavement) < 0.1


def test_nothing_above_the_horizon_is_road(mask: Region) -> None:
    assert not mask[: int(HORIZON) - 10].any()
