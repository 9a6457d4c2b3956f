"""onnxruntime's session with the CPU in place of CUDA: the graph runs, failures are scripted."""

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from quatserve.service.engine.session import CPU, CUDA

Session = ort.InferenceSession
NO_MEMORY = (
    "CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; file=/b/c.cc ; line=1 ; expr=cudaMalloc(&p, n);"
)
LOST = "CUDA failure 719: unspecified launch failure ; GPU=0 ; hostname=a ; file=/b/c.cc ; line=1 ; expr=d();"


class CudaOnCpu:
    """Says that it runs on CUDA. `failures` holds what a run of a batch size raises."""

    failures: dict[int, str]
    opened: list["CudaOnCpu"]

    def __init__(self, graph: bytes, options: ort.SessionOptions, providers: Any, **_: Any) -> None:
        self.on_cuda = providers[0] != CPU
        self.options, self.providers, self.sizes = options, providers, list[int]()
        plain = ort.SessionOptions()
        plain.enable_profiling = options.enable_profiling
        plain.profile_file_prefix = options.profile_file_prefix
        plain.intra_op_num_threads = 1
        plain.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        self._session = Session(graph, plain, providers=[CPU])
        if self.on_cuda:
            self.opened.append(self)

    def get_providers(self) -> list[str]:
        return [CUDA, CPU] if self.on_cuda else [CPU]

    def run(
        self, names: list[str], feed: dict[str, NDArray[np.uint8]], options: ort.RunOptions | None = None
    ) -> list[Any]:
        (images,) = feed.values()
        self.sizes.append(len(images))
        if self.on_cuda and (text := self.failures.get(len(images))):
            raise RuntimeError(text)
        found: list[Any] = self._session.run(names, feed, options)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)
