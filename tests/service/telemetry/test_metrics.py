"""The Prometheus document of one application."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quatserve.service.telemetry.metrics import Metrics, ModelState

STATE = ModelState(
    name="tiny", version=3, task="classification", precision="int8", provider="CPU", is_fallback=True,
    queued=2, admitted=5,
)  # fmt: skip


def samples(metrics: Metrics) -> dict[str, float]:
    """Name and labels -> value."""

    def each() -> Iterator[tuple[str, float]]:
        for family in text_string_to_metric_families(metrics.render().decode()):
            for sample in family.samples:
                yield f"{sample.name}{sorted(sample.labels.items())}", sample.value

    return dict(each())


def test_the_state_of_the_models_is_read_at_each_scrape() -> None:
    metrics, states = Metrics(), list[ModelState]()
    metrics.watch(lambda: states)
    assert not [name for name in samples(metrics) if "tiny" in name]
    states.append(STATE)
    found = {name: value for name, value in samples(metrics).items() if "tiny" in name}
    model = "('model', 'tiny')"
    assert found == {
        f"quatserve_queue_images[{model}]": 2,
        f"quatserve_admitted_images[{model}]": 5,
        f"quatserve_provider_fallback[{model}]": 1,
        f"quatserve_model_info[{model}, ('precision', 'int8'), ('provider', 'CPU'),"
        " ('task', 'classification'), ('version', '3')]": 1,
    }


def test_runs_are_counted_per_model() -> None:
    metrics = Metrics()
    metrics.observer("a").ran(images=4, seconds=0.5)
    metrics.observer("b").failed()
    found = samples(metrics)
    assert found["quatserve_batch_images_sum[('model', 'a')]"] == 4
    assert found["quatserve_run_seconds_sum[('model', 'a')]"] == pytest.approx(0.5)
    assert found["quatserve_failed_runs_total[('model', 'b')]"] == 1


def test_two_applications_do_not_share_counters() -> None:
    first, second = Metrics(), Metrics()
    first.rejections.labels("queue-full").inc()
    assert "queue-full" in first.render().decode()
    assert "queue-full" not in second.render().decode()
