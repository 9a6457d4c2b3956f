"""The training image: one epoch on small data, the export, and the service's container serves the result."""

import json
import os
import shutil
from pathlib import Path

from tests.compose.project import Project
from tests.compose.serving import assert_mask
from tests.training.tiny_data import write_frames

IMAGE = "quatserve:training"
RECIPE, NAME = "kitti-road-quaternion", "mine"
FRAMES_PER_CATEGORY = 18  # the recipe holds out the last 16 of each


def check_training(project: Project) -> None:
    network = os.environ.get("BUILD_NETWORK", "default")
    project.docker("build", "--network", network, "--file", "docker/training.Dockerfile", "--tag", IMAGE, ".")
    print(f"image {IMAGE}: {project.image_size(IMAGE)}", flush=True)
    work = project.folder / "work"
    write_frames(work / "data", each=FRAMES_PER_CATEGORY)
    quatserve(project, work, "fit", RECIPE, "--data", "data", "--out", "runs/mine", "--epochs", 1)
    artifact = f"models/{NAME}/1"
    build = ("build", "runs/mine", "--data", "data", "--out", artifact, "--max-loss", 100)
    quatserve(project, work, *build)

    models = project.folder / "models"
    shutil.rmtree(models)
    shutil.copytree(work / "models", models)
    with project.up():
        served = json.loads(project.request("GET", "/readyz")[1])["models"]
        assert [model["name"] for model in served] == [NAME], served
        assert_mask(project)
    print("training image: one epoch, export, and the service's container serves the result", flush=True)


def quatserve(project: Project, work: Path, *arguments: object) -> None:
    """A command of the image as the README gives it: the folder is mounted, and its owner writes."""
    user = f"{os.getuid()}:{os.getgid()}"
    project.docker(
        "run", "--rm", "--user", user, "--network", "none", "--volume", f"{work}:/work", IMAGE, *arguments
    )
