"""Prometheus beside the service: it scrapes with the key, and has the service's own metrics."""

import json
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from tests.compose.project import SERVICE, Project, wait_for
from tests.compose.serving import classify

DIRECT = build_opener(ProxyHandler({}))


def check_monitoring(project: Project, key: str) -> None:
    """With the key and, as on a fresh clone, without any. A wrong key would show as `up` = 0."""
    file = project.folder / "scrape.txt"
    file.write_text(key)
    file.chmod(0o644)
    with project.up(SERVICE, "prometheus"):
        _assert_scraped(project, "")
    with project.up(SERVICE, "prometheus", API_KEYS_FILE="./keys.txt", SCRAPE_KEY_FILE="./scrape.txt"):
        _assert_scraped(project, key)
    print("Prometheus: scrapes without keys and with the key from its secret, has the alerts", flush=True)


def _assert_scraped(project: Project, key: str) -> None:
    wait_for(lambda: query(project, 'up{job="quatserve"}') == [1.0], "a scrape")
    assert classify(project, key)[0] == 200
    asked = 'sum(quatserve_requests_total{route="/classify",status="200"})'
    wait_for(lambda: query(project, asked) == [1.0], "the request in Prometheus")
    rules = ask(project, "rules")["groups"]
    assert [group["name"] for group in rules] == ["quatserve"], rules


def query(project: Project, expression: str) -> list[float]:
    try:
        found = ask(project, f"query?{urlencode({'query': expression})}")["result"]
    except OSError:  # not up yet
        return []
    return [float(series["value"][1]) for series in found]


def ask(project: Project, path: str) -> Any:
    with DIRECT.open(f"http://127.0.0.1:{project.prometheus_port}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)["data"]
