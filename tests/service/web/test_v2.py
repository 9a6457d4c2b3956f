"""The Open Inference Protocol, by the unmodified client of Triton."""

import asyncio
import json
import shutil
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import tritonclient.http as triton
from starlette.requests import Request
from tritonclient.utils import InferenceServerException

from quatserve.service.artifact import read_description
from quatserve.service.engine.registry import Registry
from quatserve.service.errors import BadParameterError
from quatserve.service.settings import Settings
from quatserve.service.telemetry.metrics import Metrics
from quatserve.service.web.inference import Inference
from quatserve.service.web.tensors import HEADER_LENGTH, read_request
from quatserve.service.web.v2 import run_tensors
from tests.service.artifacts import (
    CLASSIFIER,
    SEGMENTER,
    expected_probabilities,
    write_both,
    write_classifier,
    write_truncated,
)
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


def test_a_version_is_a_path_parameter_only(service: RunningService) -> None:
    schema = service.client.get("/openapi.json").json()
    parameters = {
        path: [
            (p["name"], p["in"]) for operation in methods.values() for p in operation.get("parameters", [])
        ]
        for path, methods in schema["paths"].items()
        if path.startswith("/v2/models/")
    }
    named = [("name", "path"), ("version", "path")]
    assert len(parameters) == 6
    assert all(found == named[: path.count("{")] for path, found in parameters.items())
    assert service.client.get(f"/v2/models/{CLASSIFIER}?version=2").status_code == 200


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


def with_data(data: object, count: object = 1) -> bytes:
    """A request for one image with any `data`."""
    tensor = {"name": "images", "datatype": "UINT8", "shape": [count, 32, 32, 3], "data": data}
    return orjson.dumps({"inputs": [tensor]})


@pytest.mark.parametrize("shape", [(-1,), (1, 32, 32, 3), (32, 96), (1, 1, 3072)])
def test_numbers_may_be_nested(service: RunningService, shape: tuple[int, ...]) -> None:
    body = with_data(IMAGES[0].reshape(shape).tolist())
    answer = service.client.post(f"/v2/models/{CLASSIFIER}/infer", content=body).json()
    expected = expected_probabilities(IMAGES[:1])[0]
    np.testing.assert_allclose(answer["outputs"][0]["data"], expected, atol=1e-5)


def test_an_id_is_returned_if_there_is_one(service: RunningService) -> None:
    for id_, expected in [(b'"a"', "a"), (b"null", None), (b'""', None)]:
        body = b'{"id":' + id_ + b"," + with_data([0] * 3072)[1:]
        answer = service.client.post(f"/v2/models/{CLASSIFIER}/infer", content=body).json()
        assert answer.get("id") == expected


def test_raw_tensors_are_not_copied(models_dir: Path) -> None:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "images",
                    "datatype": "UINT8",
                    "shape": IMAGES.shape,
                    "parameters": {"binary_data_size": IMAGES.size},
                }
            ]
        }
    ).encode()
    body = head + IMAGES.tobytes()
    description = read_description(models_dir / CLASSIFIER / "1")
    found = read_request(body, str(len(head)), description, max_images=16).images
    np.testing.assert_array_equal(found, IMAGES)
    assert np.shares_memory(found, np.frombuffer(body, np.uint8))


def test_one_long_string_among_the_numbers_takes_no_memory(models_dir: Path) -> None:
    """numpy would pad every string to the longest: here 160 MB."""
    body = with_data(["a" * 4000, *[""] * 10_000])
    description = read_description(models_dir / CLASSIFIER / "1")
    tracemalloc.start()
    try:
        with pytest.raises(BadParameterError, match="more than the 3072 numbers"):
            read_request(body, None, description, max_images=16)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_json_longer_than_any_request_is_refused_unread(service: RunningService) -> None:
    """Parsing 16 MB of `[],` takes a second and half a gigabyte, and blocks all other requests."""
    most = 8 * 16 * IMAGES[0].size + 64 * 1024
    for body, status in [(b"[" * most, 400), (b"[" * (most + 1), 413), (with_data([[]] * 700_000), 413)]:
        response = service.client.post(f"/v2/models/{CLASSIFIER}/infer", content=body)
        assert response.status_code == status
    assert response.json()["type"] == "urn:quatserve:problem:body-too-large"


def test_the_largest_request_may_be_written_with_spaces(service: RunningService) -> None:
    images = np.full((16, 32, 32, 3), 255, np.uint8)
    tensor = {"name": "images", "datatype": "UINT8", "shape": images.shape, "data": images.tolist()}
    body = json.dumps({"inputs": [tensor]}, separators=(" , ", " : "))
    answer = service.client.post(f"/v2/models/{CLASSIFIER}/infer", content=body).json()
    assert answer["outputs"][0]["shape"] == [16, 3]


def test_segmentation(client: triton.InferenceServerClient) -> None:
    frame = np.random.default_rng(1).integers(0, 256, (1, 24, 80, 3), dtype=np.uint8)
    result = client.infer(SEGMENTER, asked(frame, True), model_version="1")
    np.testing.assert_array_equal(result.as_numpy("heatmap"), frame[:, None, ..., 0])


def test_errors_reach_the_client(client: triton.InferenceServerClient) -> None:
    for images, name, model, told in [
        (IMAGES[:, :16], "images", CLASSIFIER, "the shape must be"),
        (np.repeat(IMAGES, 6, axis=0), "images", CLASSIFIER, "18 images; at most 16"),
        (IMAGES, "pictures", CLASSIFIER, "the input must be images"),
        (IMAGES, "images", "nobody", "no model 'nobody'"),
    ]:
        with pytest.raises(InferenceServerException, match=told) as fault:
            client.infer(model, asked(images, True, name))
        assert "decoding the response" not in str(fault.value)  # the client understood it


def with_binary(size: object) -> bytes:
    """An input that declares `size` raw bytes, but has none."""
    document = orjson.loads(with_data([0] * 3072))
    document["inputs"][0]["parameters"] = {"binary_data_size": size}
    return orjson.dumps(document)


def test_raw_bytes_must_have_the_declared_size(models_dir: Path) -> None:
    description = read_description(models_dir / CLASSIFIER / "1")
    for promised, sent in [(3072, 3071), (3072, 3073), (3071, 3072), (None, 3072)]:
        document = orjson.loads(with_binary(promised))
        del document["inputs"][0]["data"]
        head = orjson.dumps(document)
        with pytest.raises(BadParameterError, match="raw bytes"):
            read_request(head + bytes(sent), str(len(head)), description, max_images=16)


NO_BYTES: list[object] = [256, -1, 1 << 63, 1.0, True, "a", "", None, {}]
NO_IMAGE: list[object] = [
    *([], [1], 3072, "a" * 3072, {"a": 1}, None),
    *([value] * 3072 for value in NO_BYTES),
    *([1] * 3073, [[1] * 3073], [[]] * 3073),
    *([[1], [1] * 3071], [1, [1] * 3071], [[[1]] * 3071, 1]),
]


@pytest.mark.parametrize(
    ("body", "length", "status"),
    [
        (b"{", None, 400),
        (b"[]", None, 400),
        (b"{}", b"99", 400),
        (b"{}", b"\xb2", 400),  # str.isdigit() accepts it, int() does not
        (b"{}", b"9" * 5000, 400),
        (b"{}", None, 422),
        *((with_data(data), None, 422) for data in NO_IMAGE),
        (b'{"inputs":[{"name":"images","datatype":"UINT8","shape":[-1,32,32,3],"data":[1]}]}', None, 422),
        (b'{"inputs":[{"name":"images","datatype":"UINT8","shape":"x","data":[1]}]}', None, 422),
        (with_data([0] * 3072, count=True), None, 422),
        (with_data([0] * 3072, count=7).replace(b"7", b"[" * 1000 + b"]" * 1000), None, 422),
        (with_binary(3071), None, 422),
        (with_binary(True), None, 422),
        (with_binary(None), None, 422),
        (b'{"id":7,' + with_data([0] * 3072)[1:], None, 422),
        (b'{"id":0,' + with_data([0] * 3072)[1:], None, 422),
        (b'{"inputs":[{"name":"images","datatype":"UINT8","shape":[17,32,32,3],"data":[]}]}', None, 413),
    ],
)
def test_malformed_requests_are_refused(
    service: RunningService, body: bytes, length: bytes | None, status: int
) -> None:
    headers = {} if length is None else {HEADER_LENGTH.encode(): length}
    response = service.client.post(f"/v2/models/{CLASSIFIER}/infer", content=body, headers=headers)
    assert response.status_code == status
    assert response.json()["type"].startswith("urn:quatserve:problem:")


def test_the_repository_needs_keys_in_the_settings(service: RunningService) -> None:
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
            with pytest.raises(InferenceServerException, match="no model 'nobody'"):
                client.load_model("nobody", headers)
            write_truncated(tmp_path, 2)
            with pytest.raises(
                InferenceServerException, match=r"version 2: .*; version 1 goes on"
            ) as refused:
                client.load_model(CLASSIFIER, headers)
            assert refused.value.status() == "409"
            client.unload_model(CLASSIFIER, headers)
            shutil.rmtree(tmp_path / CLASSIFIER / "1")
            with pytest.raises(InferenceServerException, match=r"version 2: .*; none is served"):
                client.load_model(CLASSIFIER, headers)
            tmp_path.rename(tmp_path.with_name("away"))  # as if a volume were unmounted
            with pytest.raises(InferenceServerException, match=r"models directory .*: No such file") as gone:
                client.load_model(SEGMENTER, headers)
            assert gone.value.status() == "409"
            assert client.is_model_ready(SEGMENTER, headers=headers)
    finally:
        assert running.stop() == 0


def test_a_version_replaced_while_a_request_is_parsed_still_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def slowly(*arguments: Any) -> Any:
        go_on.wait(20)
        return read_request(*arguments)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": with_data(IMAGES[0].ravel().tolist())}

    async def test(pool: ThreadPoolExecutor) -> None:
        settings = Settings(models_dir=write_both(tmp_path), max_batch=2, threads=1)
        registry = Registry(settings)
        registry.start()
        inference = Inference(settings, Metrics(), pool)
        request = Request({"type": "http", "headers": []}, receive)
        answer = asyncio.create_task(run_tensors(request, inference, pool, lambda: registry.get(CLASSIFIER)))
        write_classifier(tmp_path, 2)
        await registry.rescan()
        assert registry.get(CLASSIFIER).model.description.version == 2
        go_on.set()
        assert json.loads(bytes((await answer).body))["model_version"] == "1"
        await registry.close()

    monkeypatch.setattr("quatserve.service.web.v2.read_request", slowly)
    with ThreadPoolExecutor(1) as pool:
        asyncio.run(test(pool))
