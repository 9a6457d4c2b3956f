"""How much of the session's own speed reaches the clients: raw onnxruntime, this service and LitServe.

    python benchmarks/serving.py            # writes docs/serving.md and docs/serving.png

All three take turns on the same cores with the same model and images, several rounds in one run; whoever
is not measured is stopped (SIGSTOP). Medians over the rounds are reported. Needs wrk, and litserve.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from service.artifact import Precision, Task, read_description  # noqa: E402
from service.cpus import usable_cpus  # noqa: E402
from service.decoding import prepare  # noqa: E402
from service.images import Target  # noqa: E402
from service.settings import Settings  # noqa: E402

BATCH, CONNECTIONS, SEGMENT_CONNECTIONS = 32, 32, 4
BOUNDARY = "benchmark-boundary"
RETRY_PAUSE_S = 0.25  # of a refused client in the overload: a quarter of what Retry-After asks


@dataclass(frozen=True)
class Row:
    """One figure, and the bound it has to keep."""

    name: str
    value: float
    unit: str
    bound: str = ""
    kept: bool | None = None


@dataclass
class Rounds:
    """Figures of each contender, one per round."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)
        print(f"  {name}: {value:,.1f}", flush=True)

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])


# --- what is sent ---


def png(picture: NDArray[np.uint8] | Image.Image) -> bytes:
    stream = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(stream, "PNG")
    return stream.getvalue()


def small_images(count: int = 64) -> list[bytes]:
    """CIFAR-10 test images as PNG files; noise, which is harder to decode, where the data is not there."""
    source = REPOSITORY / "data" / "cifar-10-batches-bin" / "test_batch.bin"
    if not source.exists():
        rng = np.random.default_rng(0)
        return [png(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(count)]
    records = np.fromfile(source, np.uint8, count * 3073).reshape(count, 3073)[:, 1:]
    return [png(np.ascontiguousarray(r.reshape(3, 32, 32).transpose(1, 2, 0))) for r in records]


def frames(count: int = 4) -> list[bytes]:
    """Road frames at KITTI's full size, 1242 x 375, as PNG files."""
    found = sorted((REPOSITORY / "data").glob("*road*/training/image_2/*.png"))[:count]
    if not found:
        rng = np.random.default_rng(0)
        coarse = [rng.integers(0, 256, (12, 40, 3), dtype=np.uint8) for _ in range(count)]
        return [png(Image.fromarray(c).resize((1242, 375))) for c in coarse]
    return [png(Image.open(path).convert("RGB").resize((1242, 375))) for path in found]


def form(image: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n'
    return head.encode() + b"Content-Type: image/png\r\n\r\n" + image + f"\r\n--{BOUNDARY}--\r\n".encode()


# --- wrk ---

LUA = """
local bodies, turn = {}, 0
for index = 1, %(count)d do
  local file = io.open("%(folder)s/" .. index, "rb"); bodies[index] = file:read("*a"); file:close()
end
wrk.method = "POST"; wrk.headers["Content-Type"] = "%(kind)s"
function request() turn = turn %% #bodies + 1; return wrk.format(nil, nil, nil, bodies[turn]) end
function done(summary, latency)
  local wrong = summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout
  io.write(string.format("\\nRESULT %%f %%d %%f\\n",
    summary.requests / summary.duration * 1e6, wrong, latency:percentile(50) / 1e3))
end
"""


def wrk(url: str, bodies: list[bytes], kind: str, connections: int, seconds: int) -> tuple[float, float]:
    """Requests a second and the median in ms; every answer has to be a success."""
    with tempfile.TemporaryDirectory() as folder:
        for index, body in enumerate(bodies, 1):
            (Path(folder) / str(index)).write_bytes(body)
        script = Path(folder) / "load.lua"
        script.write_text(LUA % {"count": len(bodies), "folder": folder, "kind": kind})
        command = [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{seconds}s",
            "--timeout",
            "20s",
            "-s",
            str(script),
            url,
        ]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT (\S+) (\d+) (\S+)", output)
    if found is None or found[2] != "0":
        raise SystemExit(f"{url}: some requests failed\n{output}")
    return float(found[1]), float(found[3])


# --- the contenders ---


def session_of(model: Path) -> ort.InferenceSession:
    """onnxruntime at its best: its own defaults, on as many threads as the service may use."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_cpus()
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def images_per_second(session: ort.InferenceSession, batch: NDArray[np.uint8], seconds: float) -> float:
    session.run(None, {"images": batch})
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        session.run(None, {"images": batch})
        done += len(batch)
    return done / (time.perf_counter() - begun)


def median_ms(session: ort.InferenceSession, image: NDArray[np.uint8], runs: int = 300) -> float:
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        session.run(None, {"images": image})
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server in a process group of its own, which runs only while it is measured."""

    def __init__(self, command: list[str], port: int, health: str) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait(self.url + health)
        except SystemExit:
            self.__exit__()
            raise
        self._signal(signal.SIGSTOP)

    def _wait(self, url: str) -> None:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=1):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"{' '.join(self.process.args)} did not start")  # type: ignore[arg-type]

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    @contextlib.contextmanager
    def awake(self) -> Iterator[str]:
        self._signal(signal.SIGCONT)
        try:
            yield self.url
        finally:
            self._signal(signal.SIGSTOP)

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)


def our_service(models_dir: Path, precision: Precision, **settings: object) -> Server:
    port = free_port()
    values = {"models_dir": models_dir, "port": port, "precision": precision, "access_log": False, **settings}
    flags = [text for key, value in values.items() for text in ("--" + key.replace("_", "-"), str(value))]
    return Server([sys.executable, "-m", "service", *flags], port, "/readyz")


# A program of its own: LitServe starts processes that import it anew, and may live in another environment.
LITSERVE = """
import sys

import litserve
import numpy as np
import onnxruntime
from PIL import Image

MODEL, PORT, THREADS, BATCH = sys.argv[1], *map(int, sys.argv[2:])


class Classifier(litserve.LitAPI):
    def setup(self, device):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        self.session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])

    def decode_request(self, request):
        return np.asarray(Image.open(request["file"].file).convert("RGB"))

    def batch(self, inputs):
        return np.stack(inputs)

    def predict(self, images):
        return self.session.run(None, {"images": images})[0]

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        order = np.argsort(-output)[:5]
        return {"predictions": [{"index": int(i), "probability": float(output[i])} for i in order]}


if __name__ == "__main__":
    api = Classifier(max_batch_size=BATCH, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=PORT, log_level="warning", generate_client_file=False)
"""


def litserve(python: str, model: Path, folder: Path) -> Server:
    """LitServe as its documentation would have it: decoding in the API, batches of up to 32."""
    program, port = folder / "litserve_classifier.py", free_port()
    program.write_text(LITSERVE)
    command = [python, str(program), str(model), str(port), str(usable_cpus()), str(BATCH)]
    return Server(command, port, "/health")


# --- overload ---


@dataclass
class Tally:
    accepted_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    others: int = 0


async def _client(port: int, request: bytes, until: float, tally: Tally) -> None:
    """One connection that asks without end, and pauses briefly when refused."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        begun = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
        elapsed_ms = (time.perf_counter() - begun) * 1000
        status = head[9:12]
        if status == b"200":
            tally.accepted_ms.append(elapsed_ms)
        elif status == b"503":
            tally.refused_ms.append(elapsed_ms)
            await asyncio.sleep(RETRY_PAUSE_S)
        else:
            tally.others += 1
    writer.close()


async def overload(port: int, image: bytes, connections: int, seconds: float) -> Tally:
    lines = ["POST /classify HTTP/1.1", "Host: x", "Content-Type: image/png", f"Content-Length: {len(image)}"]
    head = "\r\n".join([*lines, "", ""])
    tally, until = Tally(), time.perf_counter() + seconds
    await asyncio.gather(*(_client(port, head.encode() + image, until, tally) for _ in range(connections)))
    return tally


def p99(values: list[float]) -> float:
    return float(np.percentile(values, 99)) if values else 0.0


# --- the run ---


class Benchmark:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rounds = Rounds()
        self.rows: list[Row] = []

    def artifact(self, task: Task) -> Path:
        name = {Task.CLASSIFICATION: "cifar10-quaternion", Task.SEGMENTATION: "kitti-road-quaternion"}[task]
        versions = sorted((self.options.models_dir / name).iterdir(), key=lambda path: int(path.name))
        return Path(versions[-1])

    def batch(self, directory: Path, files: list[bytes], count: int) -> NDArray[np.uint8]:
        description = read_description(directory)
        target = Target(description.height, description.width, description.resize)
        pixels = [prepare(data, target, 1 << 25).pixels for data in files]
        return np.stack([pixels[i % len(pixels)] for i in range(count)])

    def row(self, name: str, value: float, unit: str, bound: str = "", kept: bool | None = None) -> None:
        self.rows.append(Row(name, value, unit, bound, kept))

    def classify(self, precision: Precision) -> None:
        directory, files = self.artifact(Task.CLASSIFICATION), small_images()
        file = read_description(directory).file(precision)
        if file is None:
            print(f"no {precision} file: left out")
            return
        compared = precision is Precision.FP32
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(our_service(self.options.models_dir, precision))
            theirs = stack.enter_context(self._litserve(directory / file.name)) if compared else None
            session, batch = session_of(directory / file.name), self.batch(directory, files, BATCH)
            for _ in range(self.options.rounds):
                self.rounds.add(
                    f"onnxruntime {precision}", images_per_second(session, batch, self.options.seconds)
                )
                self.rounds.add(f"session {precision}, one image, ms", median_ms(session, batch[:1]))
                self._measure(f"service {precision}", ours, "/classify", files)
                if theirs is not None:
                    self._measure_form(f"LitServe {precision}", theirs, "/predict", files)
        self._report_classify(precision, compared)

    def _litserve(self, model: Path) -> Server:
        folder = Path(tempfile.mkdtemp())
        return litserve(self.options.litserve_python, model, folder)

    def _measure(self, name: str, server: Server, path: str, files: list[bytes]) -> None:
        seconds = self.options.seconds
        with server.awake() as url:
            rate, _ = wrk(url + path, files, "image/png", CONNECTIONS, seconds)
            _, median = wrk(url + path, files, "image/png", 1, seconds)
        self.rounds.add(f"{name}, raw body", rate)
        self.rounds.add(f"{name}, one connection, ms", median)
        self._measure_form(name, server, path, files)

    def _measure_form(self, name: str, server: Server, path: str, files: list[bytes]) -> None:
        kind, forms = f"multipart/form-data; boundary={BOUNDARY}", [form(data) for data in files]
        with server.awake() as url:
            self.rounds.add(
                f"{name}, form", wrk(url + path, forms, kind, CONNECTIONS, self.options.seconds)[0]
            )

    def _report_classify(self, precision: Precision, compared: bool) -> None:
        median = self.rounds.median
        top = median(f"onnxruntime {precision}")
        self.row(f"onnxruntime alone, {precision}, batch {BATCH}", top, "images/s")
        for name, least in (("raw body", 0.65), ("form", 0.60)):
            value = median(f"service {precision}, {name}")
            bound = f">= {least:.2f} of onnxruntime: " if compared else "of onnxruntime: "
            kept = value >= least * top if compared else None
            self.row(f"service, {precision}, {name}", value, "requests/s", f"{bound}{value / top:.2f}", kept)
        if compared:
            other = median(f"LitServe {precision}, form")
            ratio = median(f"service {precision}, form") / other
            self.row(
                f"LitServe, {precision}, form",
                other,
                "requests/s",
                f"service >= 2x: {ratio:.1f}x",
                ratio >= 2,
            )
        own = median(f"session {precision}, one image, ms")
        one = median(f"service {precision}, one connection, ms")
        self.row(f"service, {precision}, one connection", one, "ms", f"<= {own:.2f} + 1.2", one <= own + 1.2)

    def segment(self) -> None:
        directory, files = self.artifact(Task.SEGMENTATION), frames()
        file = read_description(directory).file(Precision.FP32)
        assert file is not None  # every artifact has one
        session, batch = session_of(directory / file.name), self.batch(directory, files, 4)
        seconds = self.options.seconds
        with our_service(self.options.models_dir, Precision.FP32) as ours:
            for _ in range(self.options.rounds):
                best = max(images_per_second(session, batch[:n], seconds / 2) for n in (1, 4))
                self.rounds.add("onnxruntime, road", best)
                with ours.awake() as url:
                    rate, _ = wrk(url + "/segment", files, "image/png", SEGMENT_CONNECTIONS, seconds)
                self.rounds.add("service, road", rate)
        top, value = self.rounds.median("onnxruntime, road"), self.rounds.median("service, road")
        self.row("onnxruntime alone, road, fp32", top, "images/s")
        bound = f">= 0.80 of onnxruntime: {value / top:.2f}"
        self.row("service, /segment, 1242 x 375", value, "requests/s", bound, value >= 0.8 * top)

    def overload(self) -> None:
        defaults = Settings()
        connections = 10 * (defaults.queue_images + defaults.max_batch)
        image = small_images(1)[0]
        with our_service(self.options.models_dir, Precision.FP32) as ours, ours.awake():
            asyncio.run(
                overload(ours.port, image, connections, self.options.seconds)
            )  # as many, so memory is warm
            before = ours.resident_bytes()
            tally = asyncio.run(overload(ours.port, image, connections, self.options.overload_seconds))
            after = ours.resident_bytes()
        batch_ms = 1000 * BATCH / self.rounds.median("onnxruntime fp32")
        limit = 1000 * defaults.queue_timeout_s + 2 * batch_ms
        accepted, refused = p99(tally.accepted_ms), p99(tally.refused_ms)
        name = f"overload, {connections} connections"
        self.row(f"{name}: accepted, p99", accepted, "ms", f"<= {limit:.0f}", accepted <= limit)
        self.row(f"{name}: {len(tally.refused_ms):,} refused, p99", refused, "ms", "<= 250", refused <= 250)
        self.row(f"{name}: other answers", tally.others, "", "0", tally.others == 0)
        self.row(f"{name}: memory after / before", after / before, "", "<= 1.05", after <= 1.05 * before)


def report(benchmark: Benchmark, command: str) -> str:
    options = benchmark.options
    lines = [
        "# Serving speed", "",
        f"`{command}` on {platform.machine()}, {usable_cpus()} processors shared by the",
        f"servers and the load generator, onnxruntime {ort.__version__}, {options.rounds} rounds of",
        f"{options.seconds} s, contenders alternating, {CONNECTIONS} connections, medians.", "",
        "| what | figure | bound | kept |", "|---|---|---|---|",
    ]  # fmt: skip
    marks = {True: "yes", False: "**no**", None: ""}
    lines += [f"| {r.name} | {r.value:,.2f} {r.unit} | {r.bound} | {marks[r.kept]} |" for r in benchmark.rows]
    return "\n".join([*lines, "", "![requests a second](serving.png)", ""])


def plot(benchmark: Benchmark, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = [row for row in benchmark.rows if row.unit in ("images/s", "requests/s")]
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(rows) + 1.2))
    colours = [
        "#888888" if "alone" in r.name else "#d98c3f" if "LitServe" in r.name else "#3f7fd9" for r in rows
    ]
    bars = axes.barh([row.name for row in rows], [row.value for row in rows], color=colours)
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("images a second")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=140)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models-dir", type=Path, default=REPOSITORY / "models")
    parser.add_argument("--seconds", type=int, default=8, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--overload-seconds", type=int, default=20)
    parser.add_argument("--litserve-python", default=sys.executable, help="an interpreter that has litserve")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs")
    benchmark = Benchmark(parser.parse_args(arguments))
    steps: list[Callable[[], None]] = [
        lambda: benchmark.classify(Precision.FP32),
        lambda: benchmark.classify(Precision.INT8),
        benchmark.segment,
        benchmark.overload,
    ]
    for step in steps:
        step()
    text = report(benchmark, "python benchmarks/serving.py")
    benchmark.options.out.mkdir(parents=True, exist_ok=True)
    (benchmark.options.out / "serving.md").write_text(text)
    (benchmark.options.out / "serving.json").write_text(json.dumps(benchmark.rounds.values, indent=1) + "\n")
    plot(benchmark, benchmark.options.out / "serving.png")
    print(text)
    return 0 if all(row.kept is not False for row in benchmark.rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
