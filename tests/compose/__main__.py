"""`make check-compose`: the images are built and put to work by the engine that DOCKER_HOST names.

The engine must run on this machine: a process is killed by its id here, and folders are mounted from here.
"""

import tempfile
import time
from pathlib import Path

from tests.compose import serving
from tests.compose.monitoring import check_monitoring
from tests.compose.project import SERVICE, Project
from tests.compose.training import check_training


def main() -> None:
    begun = time.monotonic()

    def step(name: str) -> None:
        print(f"-- {name} ({time.monotonic() - begun:.0f} s so far)", flush=True)

    with tempfile.TemporaryDirectory(prefix="compose-") as folder:
        Path(folder).chmod(0o755)  # the containers' users read below it
        project = Project(Path(folder))
        step("service image")
        project.compose("build", SERVICE)
        print(f"image quatserve:cpu: {project.image_size('quatserve:cpu')}", flush=True)
        step("serving")
        serving.check_fresh_clone(project)
        key = serving.check_keys(project)
        serving.check_refused_device(project)
        serving.check_no_gpu(project)
        step("monitoring")
        check_monitoring(project, key)
        step("training")
        check_training(project)
        step("all checks passed")


if __name__ == "__main__":
    main()
