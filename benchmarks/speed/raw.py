"""onnxruntime alone, on input that is prepared already: the ceiling the service is held against.

The session has the very options the service gives its own (threads, spinning), so that what differs is the
service and not the setting.
"""

import statistics
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from quatserve.service.artifact import INPUT_NAME, Precision, read_description
from quatserve.service.engine.cpus import usable_cpus
from quatserve.service.engine.session import CPU, session_options


def model_file(directory: Path, precision: Precision) -> Path | None:
    """The graph of an artifact at a precision, where it has one."""
    file = read_description(directory).file(precision)
    return None if file is None else directory / file.name


def raw_session(model: Path, threads: int | None = None) -> ort.InferenceSession:
    return ort.InferenceSession(model, session_options(threads or usable_cpus()), providers=[CPU])


def images_per_second(session: ort.InferenceSession, batch: NDArray[np.uint8], seconds: float) -> float:
    """The same batch over and over."""
    session.run(None, {INPUT_NAME: batch})
    begun, done = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        session.run(None, {INPUT_NAME: batch})
        done += len(batch)
    return done / (time.perf_counter() - begun)


def median_ms(session: ort.InferenceSession, batch: NDArray[np.uint8], seconds: float) -> float:
    """The time of one run, one after the other."""
    session.run(None, {INPUT_NAME: batch})
    times, end = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        session.run(None, {INPUT_NAME: batch})
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000
