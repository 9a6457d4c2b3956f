"""Start, rescan, drain and end of a real process."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.service import faulty_service
from tests.service.artifacts import (
    CLASSIFIER,
    SEGMENTER,
    expected_probabilities,
    probe_images,
    write,
    write_both,
    write_classifier,
    write_nan,
    write_truncated,
    write_wrong_digest,
)
from tests.service.conftest import Start
from tests.service.faulty_service import ENDLESS_WIDTH, HELD, HOLD_FILE
from tests.service.harness import REPOSITORY, Background, RunningService, plain, wait_until

FAULTY = (faulty_service.__file__,)
RED = plain((200, 60, 40))


def version_served(running: RunningService, name: str = CLASSIFIER) -> int:
    return int(running.client.get(f"/models/{name}").json()["version"])


def refused(running: RunningService) -> dict[tuple[str, int], str]:
    body = running.client.get("/models").json()
    return {(r["name"], r["version"]): r["reason"] for r in body["refused"]}


def rescan(running: RunningService) -> None:
    running.signal(signal.SIGHUP)


# --- which version ---


def test_the_highest_version_number_is_served(start: Start, tmp_path: Path) -> None:
    for version in (2, 10, 9):
        write_classifier(tmp_path, version)
    (tmp_path / CLASSIFIER / "latest").mkdir()
    (tmp_path / CLASSIFIER / "011").mkdir()
    (tmp_path / "Not A Model").mkdir()
    assert version_served(start(tmp_path)) == 10


def test_a_broken_highest_version_falls_back_to_the_one_below(start: Start, tmp_path: Path) -> None:
    write_both(tmp_path)
    (write_classifier(tmp_path, 2) / "model.onnx").write_bytes(b"broken")
    running = start(tmp_path)
    assert version_served(running) == 1
    assert "sha256" in refused(running)[(CLASSIFIER, 2)]
    ready = running.client.get("/readyz")
    assert ready.status_code == 200  # a refused version does not make the service unready
    assert [r["version"] for r in ready.json()["refused"]] == [2]


def test_a_name_without_a_loadable_version_makes_the_service_unready(start: Start, tmp_path: Path) -> None:
    write_both(tmp_path)
    (tmp_path / SEGMENTER / "1" / "probe.npz").unlink()
    running = start(tmp_path)
    response = running.client.get("/readyz")
    assert (response.status_code, response.json()["missing"]) == (503, [SEGMENTER])
    assert running.client.post("/classify", files={"file": RED}).status_code == 200
    shutil.rmtree(tmp_path / SEGMENTER)
    rescan(running)
    wait_until(lambda: running.client.get("/readyz").status_code == 200)


def test_several_models_of_a_task_need_a_default(start: Start, tmp_path: Path) -> None:
    write_classifier(tmp_path)
    write_classifier(tmp_path, name="other-colours")
    running = start(tmp_path)
    response = running.client.post("/classify", files={"file": RED})
    assert (response.status_code, response.json()["type"]) == (422, "urn:quatserve:problem:no-default-model")
    assert "other-colours" in response.json()["detail"]
    response = running.client.post("/segment", files={"file": RED})
    assert (response.status_code, response.json()["detail"]) == (404, "no model here does segmentation")
    chosen = start(tmp_path, default_classifier="other-colours")
    assert chosen.client.post("/classify", files={"file": RED}).json()["model"] == "other-colours"


def test_cuda_refuses_to_start_where_there_is_none(models_dir: Path) -> None:
    with pytest.raises(AssertionError, match="error: device cuda: "):
        RunningService(models_dir, device="cuda")


def test_if_nothing_can_be_served_each_reason_names_its_model(tmp_path: Path) -> None:
    images = probe_images((32, 32))
    outputs = {"fp32": expected_probabilities(images).astype(np.float32)}
    for name in ("odd", "even"):
        write(
            tmp_path,
            name,
            1,
            "classification",
            (32, 32),
            {"fp32": b"no graph"},
            outputs,
            images,
            tolerance=0.1,
        )
    with pytest.raises(AssertionError) as told:
        RunningService(tmp_path)
    line = (
        str(told.value).split("error: models directory")[1].splitlines()[0]
    )  # the log follows on its thread
    assert line.count("/odd/1/") == line.count("/even/1/") == 1


# --- SIGHUP ---


class Load:
    """Continuous requests from a few threads; records every status and version."""

    def __init__(self, running: RunningService, clients: int = 3) -> None:
        self.statuses: list[int] = []
        self.versions: list[int] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(running.url,)) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _work(self, url: str) -> None:
        with httpx.Client(base_url=url, timeout=20) as client:
            while not self._stop.is_set():
                response = client.post("/classify", files={"file": RED})
                self.statuses.append(response.status_code)
                self.versions.append(response.json().get("version", 0))

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_a_new_version_replaces_the_old_one_under_load_and_broken_ones_do_not(
    start: Start, tmp_path: Path
) -> None:
    write_both(tmp_path)
    running = start(tmp_path)
    load = Load(running)
    wait_until(lambda: len(load.versions) > 3)
    try:
        write_classifier(tmp_path, 2, size=(16, 16))  # with another input size
        rescan(running)
        wait_until(lambda: 2 in load.versions)
        for version, write in ((3, write_truncated), (4, write_wrong_digest), (5, write_nan)):
            write(tmp_path, version)
        rescan(running)
        wait_until(lambda: len(refused(running)) == 3)
        assert version_served(running) == 2
        write_classifier(tmp_path, 6)
        rescan(running)
        wait_until(lambda: 6 in load.versions)
    finally:
        load.stop()
    assert set(load.statuses) == {200}
    assert set(load.versions) == {1, 2, 6}
    assert running.client.get("/readyz").status_code == 200


def test_a_removed_model_is_unloaded_and_an_unreadable_directory_changes_nothing(
    start: Start, tmp_path: Path
) -> None:
    root = tmp_path / "models"
    write_both(root)
    running = start(root)
    root.rename(tmp_path / "away")
    rescan(running)
    wait_until(lambda: "nothing changed" in running.log())
    assert running.client.post("/classify", files={"file": RED}).status_code == 200
    root.mkdir()  # the empty mount point of an unmounted volume
    rescan(running)
    wait_until(lambda: running.log().count("nothing changed") == 2)
    assert running.client.post("/classify", files={"file": RED}).status_code == 200
    root.rmdir()
    (tmp_path / "away").rename(root)
    shutil.rmtree(root / CLASSIFIER)
    rescan(running)
    wait_until(lambda: running.client.get(f"/models/{CLASSIFIER}").status_code == 404)
    assert running.client.get("/readyz").status_code == 200


# --- SIGTERM ---


HELD_IMAGE = plain((HELD, 0, 0))


def held_work(running: RunningService, count: int) -> list[Background]:
    """Accepted requests that do not end while the hold file exists."""
    url = f"{running.url}/classify"
    work = [Background(lambda: httpx.post(url, files={"file": HELD_IMAGE}, timeout=20)) for _ in range(count)]
    wait_until(lambda: running.metric("quatserve_admitted_images", model=CLASSIFIER) == count)
    return work


def test_accepted_work_is_finished_and_new_work_refused(start: Start, models_dir: Path) -> None:
    running = start(program=FAULTY, max_batch=1, queue_timeout_s=5)
    hold = models_dir / HOLD_FILE
    hold.touch()
    work = held_work(running, 4)
    running.signal(signal.SIGTERM)
    wait_until(lambda: httpx.get(f"{running.url}/readyz").status_code == 503)
    assert httpx.get(f"{running.url}/readyz").json()["draining"] is True
    assert httpx.get(f"{running.url}/healthz").status_code == 200
    response = httpx.post(f"{running.url}/classify", files={"file": RED})
    assert (response.status_code, response.json()["type"]) == (503, "urn:quatserve:problem:draining")
    assert "retry-after" in response.headers
    hold.unlink()
    assert [w.result().status_code for w in work] == [200] * 4
    assert running.process.wait(10) == 0  # sooner than drain_timeout_s, which is 20 s
    running.stop()


def test_the_drain_has_a_time_limit_and_answers_what_is_left(start: Start, models_dir: Path) -> None:
    running = start(program=FAULTY, max_batch=1, queue_timeout_s=60, drain_timeout_s=0.5, stuck_after_s=0.5)
    hold = models_dir / HOLD_FILE
    hold.touch()
    try:
        work = held_work(running, 5)
        running.signal(signal.SIGTERM)
        assert [w.result().status_code for w in work] == [503] * 5
        assert running.process.wait(20) == 0  # while the runs still wait
    finally:
        hold.unlink()
        running.stop()


def test_an_idle_service_exits_after_the_drain_notice(start: Start) -> None:
    running = start(drain_notice_s=1.5)
    with httpx.Client(base_url=running.url) as idle:  # keeps its connection open
        idle.get("/healthz")
        running.signal(signal.SIGINT)
        begun = time.monotonic()
        wait_until(lambda: idle.get("/readyz").status_code == 503)
        assert running.process.wait(10) == 0
        assert time.monotonic() - begun > 1.4


def test_the_exit_does_not_wait_for_a_version_that_is_loading(start: Start, tmp_path: Path) -> None:
    write_both(tmp_path)
    running = start(tmp_path, program=FAULTY, drain_timeout_s=1)
    (write_classifier(tmp_path, 2) / HOLD_FILE).touch()
    rescan(running)
    wait_until(lambda: '"version":2' in running.log(), 30)
    running.signal(signal.SIGTERM)
    assert running.process.wait(15) == 0


def test_the_exit_does_not_wait_for_an_image_that_is_never_decoded(start: Start) -> None:
    running = start(program=FAULTY, deadline_s=1)
    data = plain((0, 0, 0), (ENDLESS_WIDTH, 8))
    assert httpx.post(f"{running.url}/classify", files={"file": data}).status_code == 504
    running.signal(signal.SIGTERM)
    assert running.process.wait(10) == 0


def test_no_version_is_loaded_while_draining(start: Start, tmp_path: Path) -> None:
    write_both(tmp_path)
    running = start(tmp_path, drain_notice_s=5, api_keys="key")
    running.signal(signal.SIGTERM)
    wait_until(lambda: '"draining"' in running.log())
    write_classifier(tmp_path, 2)
    rescan(running)
    url = f"{running.url}/v2/repository/models/{CLASSIFIER}/load"
    headers = {"authorization": "Bearer key"}
    for response in (
        httpx.post(url, headers=headers),
        httpx.get(f"{running.url}/v2/models/{CLASSIFIER}/ready", headers=headers),
        httpx.get(f"{running.url}/v2/models/{CLASSIFIER}/versions/1/ready", headers=headers),
    ):
        assert (response.status_code, response.json()["type"]) == (503, "urn:quatserve:problem:draining")
    assert running.process.wait(15) == 0
    assert '"version":2' not in running.log()


def test_a_port_in_use_is_reported(start: Start, models_dir: Path) -> None:
    running = start()
    with pytest.raises(AssertionError, match="is taken"):
        RunningService(models_dir, port=running.port)


@pytest.mark.parametrize("last", [signal.SIGTERM, signal.SIGINT])
def test_signals_during_the_start_are_ignored_or_end_it_with_exit_code_0(
    models_dir: Path, last: signal.Signals
) -> None:
    command = [sys.executable, "-c", STARTING, "--models-dir", str(models_dir), "--port", "0"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout as told:
        assert told.readline() == b"loading\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(last)
        assert process.wait(20) == 0


STARTING = """
import sys, time
import quatserve.service.app
from quatserve.service.commands import main

def load(*_, **__):
    print("loading", flush=True)
    time.sleep(60)

quatserve.service.app.create_app = load
sys.exit(main(["serve", *sys.argv[1:]]))
"""
