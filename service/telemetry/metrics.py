"""The Prometheus metrics. Counters are incremented; queue depths and models are read at each scrape."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quatserve.service.telemetry.queued_handler import dropped_lines

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STAGES = ("upload", "decode", "queue", "inference", "render")


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """The state of one loaded model."""

    name: str
    version: int
    task: str
    precision: str
    provider: str
    is_fallback: bool
    queued: int
    admitted: int


class _ModelCollector(Collector):
    """Reads the state of the loaded models at each scrape, so the gauges are never stale."""

    def __init__(self, states: Callable[[], Iterable[ModelState]]) -> None:
        self._states = states

    def collect(self) -> Iterable[Metric]:
        queued = GaugeMetricFamily("quatserve_queue_images", "Images waiting for a run", labels=["model"])
        admitted = GaugeMetricFamily(
            "quatserve_admitted_images", "Images admitted and not yet answered", labels=["model"]
        )
        info = GaugeMetricFamily(
            "quatserve_model_info",
            "Models served",
            labels=["model", "version", "task", "precision", "provider"],
        )
        fallback = GaugeMetricFamily(
            "quatserve_provider_fallback", "1 if device auto fell back to the CPU", labels=["model"]
        )
        for state in self._states():
            queued.add_metric([state.name], state.queued)
            admitted.add_metric([state.name], state.admitted)
            info.add_metric([state.name, str(state.version), state.task, state.precision, state.provider], 1)
            fallback.add_metric([state.name], int(state.is_fallback))
        return [queued, admitted, info, fallback]


class _LogCollector(Collector):
    """Reads how many log lines the process has dropped."""

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(
            "quatserve_dropped_log_lines", "Log lines dropped because nobody read the log", dropped_lines()
        )


class BatchObserver:
    """Counts the runs of one model's batcher."""

    def __init__(self, images: Histogram, seconds: Histogram, failures: Counter) -> None:
        self._images, self._seconds, self._failures = images, seconds, failures

    def ran(self, images: int, seconds: float) -> None:
        self._images.observe(images)
        self._seconds.observe(seconds)

    def failed(self) -> None:
        self._failures.inc()


class Metrics:
    """The metrics of one application, in its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "quatserve_requests", "Responses sent", ["route", "status"], registry=self.registry
        )
        self.rejections = Counter(
            "quatserve_rejections", "Requests refused", ["reason"], registry=self.registry
        )
        self.seconds = Histogram(
            "quatserve_request_seconds",
            "Time from the head of a request to its response",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        stages = Histogram(
            "quatserve_stage_seconds", "Time by stage", ["stage"], buckets=SECONDS, registry=self.registry
        )
        self.stages = {name: stages.labels(name) for name in STAGES}
        self._batches = Histogram(
            "quatserve_batch_images", "Images in a run", ["model"], buckets=BATCHES, registry=self.registry
        )
        self._runs = Histogram(
            "quatserve_run_seconds", "Time of a run", ["model"], buckets=SECONDS, registry=self.registry
        )
        self._failures = Counter(
            "quatserve_failed_runs",
            "Runs that raised or returned a bad output",
            ["model"],
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(_LogCollector())

    def observer(self, model: str) -> BatchObserver:
        return BatchObserver(
            self._batches.labels(model), self._runs.labels(model), self._failures.labels(model)
        )

    def watch(self, states: Callable[[], Iterable[ModelState]]) -> None:
        """Call `states` at each scrape and export what it returns."""
        self.registry.register(_ModelCollector(states))

    def render(self) -> bytes:
        return generate_latest(self.registry)
