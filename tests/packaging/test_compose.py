"""The compose file, against its schema and our own promises; `make check-compose` runs it."""

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
Tree = dict[str, Any]
COMPOSE: Tree = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: Tree = COMPOSE["services"]
RUNTIMES = {"service": "gpu", "cpu": "cpu"}  # compose service -> the image's runtime


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    """The compose specification's own schema, as check-jsonschema carries it."""
    file = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    return Draft202012Validator(json.loads(file.read_text()))


def test_the_schema_admits_it(schema: Draft202012Validator) -> None:
    assert [error.message for error in schema.iter_errors(COMPOSE)] == []


def test_the_schema_refuses_a_misspelt_key(schema: Draft202012Validator) -> None:
    wrong = COMPOSE | {"services": {"service": {"stop_grace_peroid": "30s"}}}
    assert list(schema.iter_errors(wrong))


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_runs_with_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert "privileged" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_limits_bound_it_and_hold_on_a_host_of_any_size(name: str) -> None:
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert "memory" in limits
    assert float(limits.get("cpus", 0)) <= 1  # an engine refuses to limit to more CPUs than there are


def test_the_limit_of_threads_leaves_room_on_a_large_host() -> None:
    limits = SERVICES["service"]["deploy"]["resources"]["limits"]
    threads_per_cpu = 4  # two models, a new version of one beside them, and decoding
    assert limits["pids"] > threads_per_cpu * 256


@pytest.mark.parametrize("name", SERVICES)
def test_only_this_host_can_connect_unless_asked_otherwise(name: str) -> None:
    for port in SERVICES[name]["ports"]:
        assert port.removeprefix("${PUBLISH:-").startswith("127.0.0.1:")


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_from_here_exists_and_is_read_only(name: str) -> None:
    for volume in SERVICES[name]["volumes"]:
        source, *rest = volume.split(":")
        if source.startswith("."):
            assert (ROOT / source).exists(), volume
            assert rest[1] == "ro", volume
        else:
            assert source in COMPOSE["volumes"], volume


def test_only_the_service_for_gpus_reserves_one_and_a_variable_chooses_it() -> None:
    gpu, cpu = (SERVICES[name]["deploy"]["resources"] for name in RUNTIMES)
    (device,) = gpu["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["${GPU:-0}"], "capabilities": ["gpu"]}
    assert cpu == {"limits": gpu["limits"]}


def test_the_two_services_differ_in_nothing_else() -> None:
    gpu, cpu = (dict(SERVICES[name]) for name in RUNTIMES)
    for tree in (gpu, cpu):
        for key in ("image", "build", "deploy", "profiles", "networks"):
            tree.pop(key, None)
    assert gpu == cpu


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


def settings_of(name: str, **env_file: str) -> Settings:
    """As Compose ranks them: the image below quatserve.env, and that below `environment`."""
    environment = image_environment(RUNTIMES[name]) | env_file | SERVICES[name]["environment"]
    return Settings.model_validate(from_environment(environment))


@pytest.mark.parametrize(("name", "device"), [("service", "cuda"), ("cpu", "cpu")])
def test_image_and_device_belong_together(name: str, device: str) -> None:
    service = SERVICES[name]
    assert service["build"]["args"] == {"RUNTIME": RUNTIMES[name]}
    assert service["image"] == f"quatserve:{RUNTIMES[name]}"
    assert settings_of(name).device == device


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_file_of_settings_is_heard(name: str) -> None:
    settings = settings_of(name, QUATSERVE_DEVICE="auto", QUATSERVE_MAX_BATCH="16")
    assert (settings.device, settings.max_batch) == ("auto", 16)


@pytest.mark.parametrize("name", RUNTIMES)
def test_it_cannot_move_what_ports_mounts_and_health_check_rely_on(name: str) -> None:
    moved = {"QUATSERVE_HOST": "127.0.0.1", "QUATSERVE_PORT": "9000", "QUATSERVE_MODELS_DIR": "/elsewhere"}
    settings, service = settings_of(name, **moved), SERVICES[name]
    assert settings.host == "0.0.0.0"
    assert service["ports"][0].endswith(f":{settings.port}")
    assert f"127.0.0.1:{settings.port}/" in service["healthcheck"]["test"][-1]
    assert service["volumes"] == [f"./models:{settings.models_dir}:ro"]


def test_keys_are_secrets_and_nothing_is_asked_for_without_them() -> None:
    for name in RUNTIMES:
        assert SERVICES[name]["command"] == "${API_KEYS_FILE:+--api-keys-file /run/secrets/api_keys}"
        assert SERVICES[name]["secrets"] == ["api_keys"]
    files = {name: secret["file"] for name, secret in COMPOSE["secrets"].items()}
    assert files == {
        "api_keys": "${API_KEYS_FILE:-/dev/null}",
        "scrape_key": "${SCRAPE_KEY_FILE:-/dev/null}",
    }


def test_a_stop_waits_for_the_drain() -> None:
    settings = Settings()
    drain_s = settings.drain_notice_s + settings.drain_timeout_s + settings.stuck_after_s
    assert int(SERVICES["service"]["stop_grace_period"].removesuffix("s")) > drain_s


def test_what_does_not_come_up_unless_asked_for() -> None:
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    assert profiles == {
        "service": None,
        "cpu": ["cpu"],
        "prometheus": ["monitoring"],
        "grafana": ["monitoring"],
    }


def test_prometheus_scrapes_either_service_with_the_key_from_its_secret() -> None:
    config = yaml.safe_load((ROOT / "docker/monitoring/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    container_port = SERVICES["service"]["ports"][0].rpartition(":")[2]
    assert job["static_configs"] == [{"targets": [f"service:{container_port}"]}]
    assert SERVICES["cpu"]["networks"] == {"default": {"aliases": ["service"]}}
    assert job["authorization"] == {"credentials_file": "/run/secrets/scrape_key"}
    assert SERVICES["prometheus"]["secrets"] == ["scrape_key"]
