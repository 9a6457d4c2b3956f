"""The runs in runs/ are those of the models in models/, whatever has become of recipes and layers since."""

import numpy as np
import pytest
import torch

from quatserve.training.loop.prediction import predictor
from quatserve.training.loop.run import load_network
from tests.service.harness import REPOSITORY


@pytest.mark.parametrize(
    ("name", "tolerance"), [("cifar10-quaternion", 1e-5), ("kitti-road-quaternion", 1)], ids=str
)
def test_a_shipped_run_answers_as_its_artifact_did_when_it_was_built(name: str, tolerance: float) -> None:
    """The probe keeps what the folded file answered; the run is the unfolded network."""
    network, config = load_network(REPOSITORY / "runs" / name)
    with np.load(REPOSITORY / "models" / name / "1" / "probe.npz") as probe:
        images, expected = probe["images"], probe["fp32"].astype(np.float64)
    found = predictor(network, torch.device("cpu"))(images).astype(np.float64)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance
    assert config.epochs_done is None
