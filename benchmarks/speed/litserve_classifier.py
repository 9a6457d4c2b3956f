"""LitServe as its documentation would have it: decoding in the API, batches of up to BATCH.

    python litserve_classifier.py MODEL PORT THREADS BATCH SPIN_US

Its session has the options of ours, threads and spinning, so that the servers are compared and not a setting.

A program of its own that imports nothing of ours: LitServe may live in another environment.
"""

import sys
from typing import Any

import litserve
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

MODEL, (PORT, THREADS, BATCH, SPIN_US) = sys.argv[1], map(int, sys.argv[2:])


class Classifier(litserve.LitAPI):  # type: ignore[misc]  # LitServe has no type hints here
    def setup(self, device: str) -> None:  # noqa: ARG002  # LitServe's signature
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
        self.session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])

    # LitServe takes annotations here for the type of the body: without one it hands over the form.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return np.asarray(Image.open(request["file"].file).convert("RGB"))

    def batch(self, inputs: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        return np.stack(inputs)

    def predict(self, images: NDArray[np.uint8]) -> Any:
        return self.session.run(None, {"images": images})[0]

    def unbatch(self, output: Any) -> list[Any]:
        return list(output)

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        order = np.argsort(-output)[:5]
        return {"predictions": [{"index": int(i), "probability": float(output[i])} for i in order]}


if __name__ == "__main__":
    api = Classifier(max_batch_size=BATCH, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=PORT, log_level="warning", generate_client_file=False)
