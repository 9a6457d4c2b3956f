"""The Open Inference Protocol, spoken by the unmodified client of another server."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.service.artifacts import CLASSIFIER, SEGMENTER, expected_probabilities, write_both
from tests.service.harness import RunningService

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)


@pytest.fixture
def client(service: RunningService) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{service.port}") as client:
        yield client


def asked(images: np.ndarray, binary: bool, name: str = "images") -> list[triton.InferInput]:
    tensor = triton.InferInput(name, list(images.shape), "UINT8")
    tensor.set_data_from_numpy(images, binary_data=binary)
    return [tensor]


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(CLASSIFIER)
    assert client.is_model_ready(CLASSIFIER, "1")
    assert not client.is_model_ready(CLASSIFIER, "2")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    found = client.get_model_metadata(CLASSIFIER)
    assert found["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, 32, 32, 3]}]
    assert (found["outputs"][0]["datatype"], found["outputs"][0]["shape"]) == ("FP32", [-1, 3])


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_infer(client: triton.InferenceServerClient, binary_in: bool, binary_out: bool | None) -> None:
    outputs = (
        None if binary_out is None else [triton.InferRequestedOutput("probabilities", binary_data=binary_out)]
    )
    result = client.infer(CLASSIFIER, asked(IMAGES, binary_in), outputs=outputs, request_id="mine")
    np.testing.assert_allclose(result.as_numpy("probabilities"), expected_probabilities(IMAGES), atol=1e-5)
    assert result.get_response()["id"] == "mine"
    assert result.get_response()["model_version"] == "1"


def test_segmentation(client: triton.InferenceServerClient) -> None:
    frame = np.random.default_rng(1).integers(0, 256, (1, 24, 80, 3), dtype=np.uint8)
    result = client.infer(SEGMENTER, asked(frame, True), model_version="1")
    np.testing.assert_array_equal(result.as_numpy("road"), frame[..., 0])


def test_faults_are_told(client: triton.InferenceServerClient) -> None:
    for images, name, model, told in [
        (IMAGES[:, :16], "images", CLASSIFIER, "the shape is"),
        (np.repeat(IMAGES, 6, axis=0), "images", CLASSIFIER, "the shape is"),
        (IMAGES, "pictures", CLASSIFIER, "the input is images"),
        (IMAGES, "images", "nobody", "no model 'nobody'"),
    ]:
        with pytest.raises(InferenceServerException, match=told) as fault:
            client.infer(model, asked(images, True, name))
        assert "decoding the response" not in str(fault.value)  # the client understood it


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b"{}", {"inference-header-content-length": "99"}, 400),
        (b"{}", {}, 422),
        (b'{"inputs":[{"name":"images","datatype":"UINT8","shape":[1,32,32,3],"data":[1]}]}', {}, 422),
        (
            b'{"inputs":[{"name":"images","datatype":"UINT8","shape":[1,32,32,3],"data":[[1],[1,2]]}]}',
            {},
            422,
        ),
        (b'{"inputs":[{"name":"images","datatype":"UINT8","shape":[1,32,32,3],"data":[256]}]}', {}, 422),
        (b'{"inputs":[{"name":"images","datatype":"UINT8","shape":[1,32,32,3],"data":["a"]}]}', {}, 422),
        (b'{"inputs":[{"name":"images","datatype":"UINT8","shape":[-1,32,32,3],"data":[1]}]}', {}, 422),
        (b'{"inputs":[{"name":"images","datatype":"UINT8","shape":"x","data":[1]}]}', {}, 422),
    ],
)
def test_nonsense_is_refused(
    service: RunningService, body: bytes, headers: dict[str, str], status: int
) -> None:
    response = service.client.post(f"/v2/models/{CLASSIFIER}/infer", content=body, headers=headers)
    assert response.status_code == status
    assert response.json()["type"].startswith("urn:quatserve:problem:")


def test_the_repository_is_closed_without_keys(service: RunningService) -> None:
    assert service.client.post("/v2/repository/index").status_code == 404
    assert service.client.post(f"/v2/repository/models/{CLASSIFIER}/unload").status_code == 404
    assert service.client.get(f"/models/{CLASSIFIER}").status_code == 200


def test_the_repository_loads_and_unloads_with_a_key(tmp_path: Path) -> None:
    running = RunningService(write_both(tmp_path), api_keys="key")
    try:
        headers = {"authorization": "Bearer key"}
        with triton.InferenceServerClient(f"127.0.0.1:{running.port}") as client:
            assert httpx.post(f"{running.url}/v2/repository/index").status_code == 401
            states = {m["name"]: m["state"] for m in client.get_model_repository_index(headers)}
            assert states == {CLASSIFIER: "READY", SEGMENTER: "READY"}
            client.unload_model(CLASSIFIER, headers)
            assert not client.is_model_ready(CLASSIFIER, headers=headers)
            assert client.is_server_ready()
            client.load_model(CLASSIFIER, headers)
            assert client.is_model_ready(CLASSIFIER, headers=headers)
            with pytest.raises(InferenceServerException):
                client.load_model("nobody", headers)
    finally:
        assert running.stop() == 0
