"""The CPU service under a real engine: what it answers, what it survives, and how it ends."""

import io
import json
import os
import re
import secrets
import shutil
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from tests.compose.load import NO_ANSWER, Load
from tests.compose.project import ROOT, SAMPLES, SERVICE, EngineError, Project, wait_for

CLASSIFIER = "cifar10-quaternion"
GRACE_S = 30
LARGE = (5700, 5700)  # pixels; 32.5 million, just within the limit
LARGE_AT_ONCE = 8
WATCHED_S = 20.0
NO_GPU = 'could not select device driver "nvidia" with capabilities: [[gpu]]'


def check_fresh_clone(project: Project) -> None:
    """`docker compose up cpu` without any key file: both models answer, with few rights."""
    with project.up():
        status, body = project.request("GET", "/readyz")
        models = json.loads(body)["models"]
        assert status == 200, body
        assert {model["provider"] for model in models} == {"CPUExecutionProvider"}, body
        status, body = classify(project)
        assert (status, json.loads(body)["results"][0]["predictions"][0]["label"]) == (200, "cat"), body
        assert_mask(project)
        host = project.inspect(".HostConfig")
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["Memory"]) == (True, ["ALL"], 4 << 30), host
        assert project.inspect(".Config.User") == "10001:10001"
    print("fresh clone: ready, /classify and /segment answer, read-only, no capabilities", flush=True)


def check_keys(project: Project) -> str:
    """API keys from a secret: asked for, and not to be seen in the container's configuration."""
    key = secrets.token_urlsafe()
    file = project.folder / "keys.txt"
    file.write_text(f"{key}\n")
    file.chmod(0o644)
    with project.settings(QUATSERVE_DEADLINE_S="150"), project.up(API_KEYS_FILE="./keys.txt"):
        assert classify(project)[0] == 401
        assert classify(project, key)[0] == 200
        assert key not in json.dumps(project.inspect("."))
        check_large_images(project, key)
        check_unready(project, key)
        check_rolling_update(project, key)
        check_kill(project)
        check_stop(project, key)
    return key


def check_kill(project: Project) -> None:
    """SIGKILL to the process on this host: the engine starts a new one, after a SIGHUP too."""
    before = project.inspect(".RestartCount")
    os.kill(project.inspect(".State.Pid"), signal.SIGKILL)
    wait_for(lambda: bool(project.inspect(".RestartCount") == before + 1), "restart after SIGKILL")
    seconds = wait_for(project.is_ready, "ready after SIGKILL")
    print(f"SIGKILL: restarted, ready again after {seconds:.1f} s", flush=True)


def check_large_images(project: Project, key: str) -> None:
    """Many of the largest images at once: the process stays below the container's memory limit."""
    pixels = np.random.default_rng(0).integers(0, 256, (LARGE[1] // 50, LARGE[0] // 50, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize(LARGE, Image.Resampling.NEAREST).save(stream, "JPEG", quality=50)
    before = project.inspect(".RestartCount")
    with ThreadPoolExecutor(LARGE_AT_ONCE) as pool:
        body = stream.getvalue()
        answers = list(pool.map(lambda _: segment(project, body, key)[0], range(LARGE_AT_ONCE)))
    statuses = Counter(answers)
    assert statuses.keys() <= {200, 503}, statuses
    assert statuses[200], statuses
    state = project.inspect(".State")
    assert (state["OOMKilled"], project.inspect(".RestartCount")) == (False, before), state
    print(f"{LARGE_AT_ONCE} large images at once: {dict(statuses)}, within the memory limit", flush=True)


def check_unready(project: Project, key: str) -> None:
    """A service without models is unhealthy, and is not restarted for that."""
    before, names = project.inspect(".RestartCount"), models_of(project)
    for name in names:
        assert repository(project, name, "unload", key) == 200
    wait_for(lambda: bool(project.inspect(".State.Health.Status") == "unhealthy"), "unhealthy")
    for name in names:
        assert repository(project, name, "load", key) == 200
    wait_for(lambda: bool(project.inspect(".State.Health.Status") == "healthy"), "healthy again")
    assert project.inspect(".RestartCount") == before
    print("unready: unhealthy, not restarted, healthy again", flush=True)


def check_rolling_update(project: Project, key: str) -> None:
    """A new version in models/ and a SIGHUP: every request is answered, in the end by the new version."""
    folder = project.folder / "models" / CLASSIFIER
    with Load(project, bearer(key)).running() as load:
        wait_for(lambda: load.statuses[200] > 50, "requests before the update")
        shutil.copytree(folder / "1", folder / ".2")
        description = folder / ".2/model.json"
        description.write_text(json.dumps(json.loads(description.read_text()) | {"version": 2}))
        (folder / ".2").rename(folder / "2")  # at once, so that no rescan sees a part of it
        project.compose("exec", "--no-TTY", SERVICE, "sh", "-c", "kill -HUP 1")
        wait_for(lambda: load.versions[-1] == 2, "version 2")
    assert load.statuses.keys() == {200}, load.statuses
    assert set(load.versions) == {1, 2}
    print(f"rolling update: {load.statuses[200]} requests, none failed", flush=True)


def check_stop(project: Project, key: str) -> None:
    """SIGTERM under load: exit code 0 within the grace period; whatever was answered has arrived."""
    already = answered_by_log(project)
    with Load(project, bearer(key)).running() as load:
        wait_for(lambda: load.statuses[200] > 50, "requests before the stop")
        begun = time.monotonic()
        project.compose("stop", SERVICE)
        seconds = time.monotonic() - begun
    assert seconds < GRACE_S, seconds
    assert project.inspect(".State.ExitCode") == 0
    assert load.statuses.keys() <= {200, 503, NO_ANSWER}, load.statuses
    logged = answered_by_log(project) - already
    assert load.statuses[200] == logged, (load.statuses, logged)
    print(f"stop under load: {seconds:.1f} s, {logged} answers sent, as many received", flush=True)


def check_refused_device(project: Project) -> None:
    """Without the device it wants, it says why in one line, and the engine waits longer before each start."""
    with project.settings(QUATSERVE_DEVICE="cuda"):
        try:
            project.compose("up", "--detach", SERVICE)
            time.sleep(WATCHED_S)
            restarts = project.inspect(".RestartCount")
            said = project.log()
        finally:
            project.down()
    lines = [line for line in said.splitlines() if line]
    reason = "error: device cuda: this onnxruntime has no CUDA"
    assert all(line.startswith(reason) for line in lines), said
    doubling = int(np.log2(WATCHED_S / 0.1)) + 1  # pauses of 0.1 s, 0.2 s, ... fit into that time
    assert 2 <= restarts <= doubling, (restarts, said)
    assert restarts <= len(lines) <= restarts + 1, (restarts, said)
    print(f"device missing: {restarts} restarts in {WATCHED_S:g} s, one line each: {lines[0]}", flush=True)


def check_no_gpu(project: Project) -> None:
    """`docker compose up` where the engine has no GPU: its own refusal, which docs/gpu-host.md quotes."""
    assert "nvidia" not in project.docker("info", "--format", "{{json .Runtimes}}"), "this engine has a GPU"
    try:
        with pytest.raises(EngineError, match=re.escape(NO_GPU)):
            project.compose("up", "--detach", "--no-build", "service")
    finally:
        project.down()
    assert NO_GPU in (ROOT / "docs/gpu-host.md").read_text()
    print(f"without a GPU: {NO_GPU}", flush=True)


def classify(project: Project, key: str = "") -> tuple[int, bytes]:
    body = (SAMPLES / "cat.png").read_bytes()
    return project.request("POST", "/classify", body, {"Content-Type": "image/png", **bearer(key)})


def segment(project: Project, body: bytes, key: str = "") -> tuple[int, bytes]:
    return project.request("POST", "/segment", body, {"Content-Type": "image/jpeg", **bearer(key)})


def assert_mask(project: Project) -> None:
    road = (SAMPLES / "road.jpg").read_bytes()
    status, body = segment(project, road)
    assert status == 200, body
    assert Image.open(io.BytesIO(body)).size == Image.open(io.BytesIO(road)).size


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def models_of(project: Project) -> list[str]:
    return [path.parents[1].name for path in project.folder.glob("models/*/1/model.json")]


def repository(project: Project, name: str, action: str, key: str) -> int:
    path = f"/v2/repository/models/{name}/{action}"
    return project.request("POST", path, b"{}", {"Content-Type": "application/json", **bearer(key)})[0]


def answered_by_log(project: Project) -> int:
    """The requests for /classify that the service's own log has as 200."""
    lines = project.log().splitlines()
    return sum(json.loads(line).get("status") == 200 for line in lines if '"/classify"' in line)
