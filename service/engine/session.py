"""One onnxruntime session: where it runs is checked, its output is checked, and a run can be stopped."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from quatserve.service.artifact import INPUT_NAME, Description, Task
from quatserve.service.engine.cpus import lower_priority
from quatserve.service.engine.external_data import refuse_external_data
from quatserve.service.errors import ArtifactError, BadOutputError

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
OUTPUT_DTYPES: dict[Task, np.dtype[Any]] = {
    Task.CLASSIFICATION: np.dtype(np.float32),
    Task.SEGMENTATION: np.dtype(np.uint8),
}
ELEMENT_TYPES = {np.dtype(np.float32): "tensor(float)", np.dtype(np.uint8): "tensor(uint8)"}
SPIN_US = 50
Provider = str | tuple[str, Mapping[str, str]]


def session_options(threads: int) -> ort.SessionOptions:
    """How many threads a session runs on, and how they wait for each other."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A thread spins between two operators rather than sleep, and no longer: sleeping costs a small image a
    # quarter of its time, spinning on would steal the processor from decoding and from other models.
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))  # from 1.26 on
    return options


def load_graph(
    graph: bytes, options: ort.SessionOptions, providers: Sequence[Provider]
) -> ort.InferenceSession:
    """An onnxruntime session that never changes its provider and reads no files, or ArtifactError."""
    refuse_external_data(graph)
    read_no_files(options)
    try:
        session = ort.InferenceSession(graph, options, providers=providers, enable_fallback=0)
    except Exception as error:  # onnxruntime raises what it likes
        raise ArtifactError(f"onnxruntime cannot load the graph: {first_line(error)}") from error
    session.disable_fallback()  # a failing run must fail, not move to another provider
    return session


def read_no_files(options: ort.SessionOptions) -> None:
    """Let onnxruntime itself refuse what `refuse_external_data` would overlook."""
    options.add_session_config_entry("session.load_model_format", "ONNX")  # its own format is not checked
    # Where the tensors outside a graph are read: by default below the working directory. Nothing is here.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)


def open_on_cpu(graph: bytes, description: Description, threads: int) -> "Session":
    """A session whose threads have the priority of the thread that creates them: a low one."""
    with ThreadPoolExecutor(1, initializer=lower_priority) as thread:
        session = thread.submit(load_graph, graph, session_options(threads), [CPU]).result()
    return Session(session, description)


def first_line(error: Exception) -> str:
    """What onnxruntime means: the rest is where in its source."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class Session:
    """A loaded graph. Several threads may `run` at once; `terminate` means the run begun last."""

    def __init__(self, session: ort.InferenceSession, description: Description) -> None:
        self._session = session
        self._output = description.output_name
        self._dtype = OUTPUT_DTYPES[description.task]
        self._row_shape = row_shape(description)
        self._options = ort.RunOptions()
        self.provider: str = session.get_providers()[0]
        self._check_graph(description)

    def run(self, images: NDArray[np.uint8]) -> NDArray[Any]:
        """One row per image, of the promised shape and type, and finite."""
        self._options = options = ort.RunOptions()
        rows = self._infer(images, options)
        expected = (len(images), *self._row_shape)
        if rows.shape != expected or rows.dtype != self._dtype:
            raise BadOutputError(
                f"output is {rows.dtype}{list(rows.shape)}, not {self._dtype}{list(expected)}"
            )
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise BadOutputError("output holds numbers that are not finite")
        return rows

    def terminate(self) -> None:
        """Tell the run under way to stop; onnxruntime looks between two operators."""
        self._options.terminate = True

    def _infer(self, images: NDArray[np.uint8], options: ort.RunOptions) -> NDArray[Any]:
        rows: NDArray[Any] = self._session.run([self._output], {INPUT_NAME: images}, options)[0]
        return rows

    def _check_graph(self, description: Description) -> None:
        """The graph speaks the contract: names, types and sizes."""
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        found = [(i.name, i.type, list(i.shape[1:])) for i in inputs]
        expected = [(INPUT_NAME, "tensor(uint8)", [description.height, description.width, 3])]
        if found != expected:
            raise ArtifactError(f"the graph takes {found}, model.json promises {expected}")
        if self._output not in [o.name for o in outputs if o.type == ELEMENT_TYPES[self._dtype]]:
            raise ArtifactError(f"the graph has no output {self._output} of type {self._dtype}")


def row_shape(description: Description) -> tuple[int, ...]:
    """The shape of the output of one image."""
    classes = len(description.labels)
    if description.task is Task.CLASSIFICATION:
        return (classes,)
    return (classes, description.height, description.width)
