"""The compose files, merged like Docker Compose does: valid, and consistent with image and settings."""

import json
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile_parse import DockerfileParser
from jsonschema import Draft202012Validator

from quatserve.service.command_line import from_environment
from quatserve.service.settings import Settings

ROOT = Path(__file__).parents[2]
RESET = object()
CPU_FILES = ("docker-compose.yml", "docker-compose.cpu.yml")
Tree = dict[str, Any]


class Loader(yaml.SafeLoader):
    """YAML with compose's `!reset`, which removes a key of an earlier file."""


Loader.add_constructor("!reset", lambda _loader, _node: RESET)


def merge(below: Tree, above: Tree) -> Tree:
    merged = dict(below)
    for key, value in above.items():
        if value is RESET:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def compose(*files: str) -> Tree:
    tree: Tree = {}
    for file in files:
        tree = merge(tree, yaml.load((ROOT / file).read_text(), Loader))
    return tree


GPU, CPU = compose("docker-compose.yml"), compose(*CPU_FILES)


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    """The compose specification's own schema, as check-jsonschema carries it."""
    file = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    return Draft202012Validator(json.loads(file.read_text()))


@pytest.mark.parametrize("tree", [GPU, CPU], ids=["gpu", "cpu"])
def test_the_file_is_valid(schema: Draft202012Validator, tree: Tree) -> None:
    assert [error.message for error in schema.iter_errors(tree)] == []


def test_the_schema_refuses_a_misspelt_key(schema: Draft202012Validator) -> None:
    wrong = merge(GPU, {"services": {"service": {"stop_grace_peroid": "30s"}}})
    assert list(schema.iter_errors(wrong))


@pytest.mark.parametrize("name", GPU["services"])
def test_nothing_runs_with_more_rights_than_it_needs(name: str) -> None:
    service = GPU["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert "privileged" not in service


@pytest.mark.parametrize("name", GPU["services"])
def test_memory_is_limited_and_the_limit_of_cpus_fits_any_host(name: str) -> None:
    limits = GPU["services"][name]["deploy"]["resources"]["limits"]
    assert "memory" in limits
    assert float(limits.get("cpus", 0)) <= 1  # an engine refuses to limit to more CPUs than there are


def test_the_limit_of_threads_leaves_room_on_a_large_host() -> None:
    limits = GPU["services"]["service"]["deploy"]["resources"]["limits"]
    threads_per_cpu = 4  # two models, a new version of one beside them, and decoding
    assert limits["pids"] > threads_per_cpu * 256


@pytest.mark.parametrize("name", GPU["services"])
def test_ports_are_published_to_this_host_only(name: str) -> None:
    for port in GPU["services"][name]["ports"]:
        assert port.removeprefix("${PUBLISH:-").startswith("127.0.0.1:")


@pytest.mark.parametrize("name", GPU["services"])
def test_mounted_files_exist_and_are_read_only(name: str) -> None:
    for volume in GPU["services"][name]["volumes"]:
        source, *rest = volume.split(":")
        if source.startswith("."):
            assert (ROOT / source).exists(), volume
            assert rest[1] == "ro", volume
        else:
            assert source in GPU["volumes"], volume


def test_only_the_gpu_stack_reserves_a_gpu() -> None:
    resources = GPU["services"]["service"]["deploy"]["resources"]
    assert [device["driver"] for device in resources["reservations"]["devices"]] == ["nvidia"]
    assert CPU["services"]["service"]["deploy"]["resources"] == {"limits": resources["limits"]}


def image_environment(runtime: str) -> dict[str, str]:
    """The variables that the stages of this image set."""
    stages: dict[str, dict[str, str]] = {}
    stage = ""
    for step in DockerfileParser(str(ROOT / "docker/service.Dockerfile"), cache_content=True).structure:
        if step["instruction"] == "FROM":
            base, _, stage = step["value"].replace("${RUNTIME}", runtime).partition(" AS ")
            stages[stage] = dict(stages.get(base, {}))
        elif step["instruction"] == "ENV":
            stages[stage] |= dict(pair.split("=", 1) for pair in shlex.split(step["value"]))
    return stages[""]  # the last has no name


def settings_in(tree: Tree, runtime: str, **env_file: str) -> Settings:
    """By compose's precedence: the image, then quatserve.env, then `environment`."""
    environment = image_environment(runtime) | env_file | tree["services"]["service"]["environment"]
    return Settings.model_validate(from_environment(environment))


@pytest.mark.parametrize(("tree", "runtime", "device"), [(GPU, "gpu", "cuda"), (CPU, "cpu", "cpu")])
def test_the_image_and_the_device_match(tree: Tree, runtime: str, device: str) -> None:
    service = tree["services"]["service"]
    assert service["build"]["args"] == {"RUNTIME": runtime}
    assert service["image"] == f"quatserve:{runtime}"
    assert settings_in(tree, runtime).device == device


@pytest.mark.parametrize(("tree", "runtime"), [(GPU, "gpu"), (CPU, "cpu")])
def test_quatserve_env_overrides_the_image(tree: Tree, runtime: str) -> None:
    settings = settings_in(tree, runtime, QUATSERVE_DEVICE="auto", QUATSERVE_API_KEYS="key")
    assert (settings.device, settings.keys()) == ("auto", ("key",))


@pytest.mark.parametrize(("tree", "runtime"), [(GPU, "gpu"), (CPU, "cpu")])
def test_quatserve_env_cannot_change_host_port_and_models(tree: Tree, runtime: str) -> None:
    moved = {"QUATSERVE_HOST": "127.0.0.1", "QUATSERVE_PORT": "9000", "QUATSERVE_MODELS_DIR": "/elsewhere"}
    settings, service = settings_in(tree, runtime, **moved), tree["services"]["service"]
    assert settings.host == "0.0.0.0"
    assert service["ports"][0].endswith(f":{settings.port}")
    assert f"127.0.0.1:{settings.port}/" in service["healthcheck"]["test"][-1]
    assert service["volumes"] == [f"./models:{settings.models_dir}:ro"]


def test_stopping_waits_for_the_drain() -> None:
    settings = Settings()
    drain_s = settings.drain_notice_s + settings.drain_timeout_s + settings.stuck_after_s
    assert int(GPU["services"]["service"]["stop_grace_period"].removesuffix("s")) > drain_s


def test_monitoring_needs_its_profile() -> None:
    profiles = {name: service.get("profiles") for name, service in GPU["services"].items()}
    assert profiles == {"service": None, "prometheus": ["monitoring"], "grafana": ["monitoring"]}


def test_prometheus_scrapes_the_service() -> None:
    config = yaml.safe_load((ROOT / "docker/monitoring/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    container_port = GPU["services"]["service"]["ports"][0].rpartition(":")[2]
    assert job["static_configs"] == [{"targets": [f"service:{container_port}"]}]
