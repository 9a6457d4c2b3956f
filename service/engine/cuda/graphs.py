"""A CUDA session that replays one captured CUDA graph instead of launching its kernels one by one.

A graph belongs to a shape, to fixed buffers and to the thread that captured it. A replay cannot be
terminated: the batcher's deadline answers its callers, and a replay that is stuck ends the process.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from quatserve.service.artifact import INPUT_NAME, Description
from quatserve.service.engine.cuda.session import CudaSession

NO_CAPTURE = "-1"  # onnxruntime's word for a run of its own, kernel by kernel
RUNS_TO_CAPTURE = 2  # onnxruntime runs once to allocate, and captures the second time


class GraphSession(CudaSession):
    """One batch size: input and output stay where they are on the GPU. Until `capture` it runs as usual."""

    def __init__(self, graph: bytes, description: Description, options: Mapping[str, str], size: int) -> None:
        super().__init__(graph, description, options)
        images = np.zeros((size, description.height, description.width, 3), np.uint8)
        self._images = ort.OrtValue.ortvalue_from_numpy(images, "cuda", 0)
        self._rows = ort.OrtValue.ortvalue_from_shape_and_type(
            (size, *self._row_shape), self._dtype, "cuda", 0
        )
        self._binding = self._session.io_binding()
        self._binding.bind_ortvalue_input(INPUT_NAME, self._images)
        self._binding.bind_ortvalue_output(self._output, self._rows)
        self._graph_id, self._size = NO_CAPTURE, size

    def capture(self) -> None:
        self._graph_id = str(self._size)
        images = np.zeros(self._images.shape(), np.uint8)
        for _ in range(RUNS_TO_CAPTURE):
            self.run(images)

    def _launch(self, images: NDArray[np.uint8], options: ort.RunOptions) -> NDArray[Any]:
        options.add_run_config_entry("gpu_graph_id", self._graph_id)
        self._images.update_inplace(images)
        self._session.run_with_iobinding(self._binding, options)
        rows: NDArray[Any] = self._rows.numpy()
        return rows
