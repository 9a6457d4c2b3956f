"""The dashboard and the alerts query metrics that the service exports."""

import json
import re
from pathlib import Path

import yaml

from quatserve.service.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docker/monitoring"
METRIC = re.compile(r"\b(?:quatserve|process)_\w+")
SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}


def exposed() -> set[str]:
    metrics = Metrics()
    metrics.watch(list)  # without models, each family still has its name
    families = metrics.registry.collect()
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


def names(expressions: list[str]) -> set[str]:
    return {name for expression in expressions for name in METRIC.findall(expression)}


def test_the_dashboard_queries_metrics_that_exist() -> None:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    asked = names([target["expr"] for panel in panels for target in panel["targets"]])
    assert asked
    assert asked <= exposed()
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_dashboard_shows_every_metric_of_the_service() -> None:
    text = (MONITORING / "dashboard.json").read_text()
    own = {
        re.sub("_(total|bucket|sum|count)$", "", name) for name in exposed() if name.startswith("quatserve_")
    }
    assert {name for name in own if name not in text} == {
        "quatserve_admitted_images"
    }  # close to the queue, which it shows


def test_the_alerts_query_metrics_that_exist() -> None:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert names([rule["expr"] for rule in rules]) <= exposed()
    assert all(rule["annotations"]["summary"].endswith(".") for rule in rules)


def test_the_dashboard_finds_its_data_source() -> None:
    (source,) = yaml.safe_load((MONITORING / "datasource.yml").read_text())["datasources"]
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
