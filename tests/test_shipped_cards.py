"""What we say of the shipped models is what was measured of them."""

from pathlib import Path

import pytest

from quatserve.export.artifact.card import write_card
from quatserve.export.artifact.history import origin_of
from quatserve.service.artifact import Description, Precision, read_description
from quatserve.training.loop.run import read_config

ROOT = Path(__file__).parents[1]
NAMES = ("cifar10-quaternion", "kitti-road-quaternion")
PROMISED = {  # in fp32: parameters, and a score with its bounds
    "cifar10-quaternion": (133_560, "error", (0.0, 0.0805)),
    "kitti-road-quaternion": (132_399, "iou", (0.83, 1.0)),
}


def artifact(name: str) -> Path:
    return ROOT / "models" / name / "1"


def score(
    model: Description, name: str, split: str | None = None, precision: Precision = Precision.FP32
) -> float:
    return next(
        m.value
        for m in model.metrics
        if (m.name, m.precision) == (name, precision) and split in (None, m.split)
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_precision_ships_and_reaches_what_was_promised(name: str) -> None:
    model = read_description(artifact(name))
    parameters, metric, (least, most) = PROMISED[name]
    assert {file.precision for file in model.files} == set(Precision)
    assert model.parameters.total == parameters
    assert least < score(model, metric) <= most


@pytest.mark.parametrize("name", NAMES)
def test_the_card_is_the_one_that_the_run_and_the_description_make(name: str) -> None:
    pictures = [path.name for path in artifact(name).iterdir()]
    run, model = ROOT / "runs" / name, read_description(artifact(name))
    assert model.training is not None
    origin = origin_of(run, read_config(run), model.training.dataset or "", model.labels)
    assert origin.training == model.training
    assert (artifact(name) / "README.md").read_text() == write_card(model, origin, pictures)


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_the_scores_that_we_quote_are_those_of_the_files(page: str) -> None:
    text = (ROOT / page).read_text()
    classifier, road = (read_description(artifact(name)) for name in NAMES)
    assert f"{100 * score(classifier, 'error'):.2f} %" in text
    assert f"IoU {score(road, 'iou'):.3f}" in text


def test_what_int8_costs_the_classifier_is_told() -> None:
    model = read_description(artifact("cifar10-quaternion"))
    text = (ROOT / "README.md").read_text()
    assert f"{100 * score(model, 'error', precision=Precision.INT8):.2f} %" in text
    for split in ("training", "test"):
        changed = 1 - score(model, "agreement", split, Precision.INT8)
        assert f"{100 * changed:.2f} %" in text
