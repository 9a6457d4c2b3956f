"""`POST /classify` over a real socket, against the definition of the tiny classifier."""

from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.service.artifacts import CLASSIFIER, LABELS, SEGMENTER, expected_probabilities
from tests.service.harness import encoded, noise, plain

RED, GREEN = (200, 60, 40), (30, 190, 80)


def probabilities(result: dict[str, list[dict[str, float]]]) -> list[float]:
    """In the order of the classes."""
    return [p["probability"] for p in sorted(result["predictions"], key=lambda p: p["index"])]


def expected(pixels: NDArray[np.uint8]) -> list[float]:
    return [float(value) for value in expected_probabilities(pixels[None])[0]]


def test_the_answer_is_complete(client: httpx.Client) -> None:
    body = client.post("/classify", files={"file": plain(RED)}).json()
    assert set(body) == {"model", "version", "results", "timings_ms"}
    assert (body["model"], body["version"]) == (CLASSIFIER, 1)
    assert [set(p) for p in body["results"][0]["predictions"]] == [{"label", "index", "probability"}] * 3
    assert body["results"][0]["predictions"][0]["label"] == "red"
    assert set(body["timings_ms"]) == {"decode", "queue", "inference"}
    assert all(0 < value < 5000 for value in body["timings_ms"].values())


def test_labels_match_their_index_and_the_most_probable_comes_first(client: httpx.Client) -> None:
    found = client.post("/classify", files={"file": plain(GREEN)}).json()["results"][0]["predictions"]
    assert [p["label"] for p in found] == [LABELS[p["index"]] for p in found]
    assert [p["probability"] for p in found] == sorted((p["probability"] for p in found), reverse=True)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_lossless_formats_give_the_probabilities_of_the_definition(client: httpx.Client, kind: str) -> None:
    pixels = noise(32, 32)
    options = {"lossless": True} if kind == "WEBP" else {}
    response = client.post("/classify", files={"file": encoded(pixels, kind, **options)})
    assert probabilities(response.json()["results"][0]) == pytest.approx(expected(pixels), abs=1e-5)


def test_jpeg_is_read(client: httpx.Client) -> None:
    response = client.post("/classify", files={"file": encoded(Image.new("RGB", (64, 64), RED), "JPEG")})
    found = probabilities(response.json()["results"][0])
    assert found == pytest.approx(expected(np.full((32, 32, 3), RED, np.uint8)), abs=0.01)


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "IMAGE/PNG", "image/png; charset=binary"])
def test_a_raw_body_may_have_any_image_type(client: httpx.Client, kind: str) -> None:
    pixels = noise(32, 32, seed=1)
    response = client.post("/classify", content=encoded(pixels), headers={"content-type": kind})
    assert probabilities(response.json()["results"][0]) == pytest.approx(expected(pixels), abs=1e-5)


def test_several_files_are_answered_in_their_order(client: httpx.Client) -> None:
    pictures = [noise(32, 32, seed) // (seed + 1) for seed in range(5)]
    files = [("files", (f"{i}.png", encoded(p))) for i, p in enumerate(pictures)]
    results = client.post("/classify", files=files).json()["results"]
    assert [probabilities(r) for r in results] == [pytest.approx(expected(p), abs=1e-5) for p in pictures]


def test_each_image_of_a_request_equals_its_single_answer(client: httpx.Client) -> None:
    files = [encoded(noise(40 + seed, 32, seed)) for seed in range(16)]
    together = client.post("/classify", files=[("files", data) for data in files]).json()["results"]
    alone = [client.post("/classify", files={"file": data}).json()["results"][0] for data in files]
    assert [probabilities(r) for r in together] == [pytest.approx(probabilities(r), abs=1e-6) for r in alone]


def test_one_bad_image_fails_the_request_and_its_index_is_named(client: httpx.Client) -> None:
    files = [
        ("files", plain(RED)),
        ("files", plain(GREEN)),
        ("files", b"not an image"),
        ("files", b"neither"),
    ]
    response = client.post("/classify", files=files)
    assert response.status_code == 400
    assert response.json()["index"] == 2
    assert "image 2" in response.json()["detail"]


@pytest.mark.parametrize(("top_k", "count"), [(1, 1), (2, 2), (3, 3), (1000, 3)])
def test_top_k(client: httpx.Client, top_k: int, count: int) -> None:
    response = client.post("/classify", params={"top_k": top_k}, files={"file": plain(RED)})
    assert len(response.json()["results"][0]["predictions"]) == count


def test_a_model_can_be_named(client: httpx.Client) -> None:
    response = client.post("/classify", params={"model": CLASSIFIER}, files={"file": plain(RED)})
    assert response.json()["model"] == CLASSIFIER


PNG = plain(RED)
FORM: dict[str, Any] = {"files": {"file": PNG}}


ERRORS: list[tuple[str, dict[str, Any], int, str]] = [
    ("/classify", {"files": {"file": PNG[:60]}}, 400, "unreadable-image"),
    ("/classify", {"files": {"file": b""}}, 400, "unreadable-image"),
    (
        "/classify",
        {"content": b"junk", "headers": {"content-type": "image/png"}},
        400,
        "unreadable-image",
    ),
    ("/classify", {"content": b"", "headers": {"content-type": "image/png"}}, 400, "unreadable-image"),
    (
        "/classify",
        {"content": b"--x", "headers": {"content-type": "multipart/form-data"}},
        400,
        "malformed-upload",
    ),
    ("/classify?model=nobody", FORM, 404, "unknown-model"),
    ("/classify?model=", FORM, 404, "unknown-model"),
    ("/nowhere", FORM, 404, "not-found"),
    ("/models", FORM, 405, "method-not-allowed"),
    ("/classify", {"files": [("files", PNG)] * 17}, 413, "too-many-images"),
    ("/classify", {"json": {}}, 415, "unsupported-type"),
    ("/classify", {}, 415, "unsupported-type"),
    ("/classify", {"files": {"file": b"GIF89a" + b"0" * 50}}, 415, "unsupported-format"),
    ("/classify?top_k=0", FORM, 422, "bad-parameter"),
    ("/classify?top_k=1001", FORM, 422, "bad-parameter"),
    ("/classify?top_k=two", FORM, 422, "bad-parameter"),
    ("/classify?topk=2", FORM, 422, "bad-parameter"),
    ("/classify?top_k=2&top_k=3", FORM, 422, "bad-parameter"),
    ("/classify?model=%ff", FORM, 422, "bad-parameter"),
    ("/classify", {"files": {"picture": PNG}}, 422, "bad-parameter"),
    (f"/classify?model={SEGMENTER}", FORM, 422, "wrong-task"),
    (f"/segment?model={CLASSIFIER}", FORM, 422, "wrong-task"),
    ("/segment", {"files": [("files", PNG)] * 2}, 422, "bad-parameter"),
    ("/segment?threshold=nan", FORM, 422, "bad-parameter"),
    ("/segment?threshold=1.01", FORM, 422, "bad-parameter"),
    ("/segment?output=film", FORM, 422, "bad-parameter"),
]


@pytest.mark.parametrize(("path", "request_", "status", "slug"), ERRORS)
def test_errors_are_documents_with_a_stable_type(
    client: httpx.Client, path: str, request_: dict[str, Any], status: int, slug: str
) -> None:
    response = client.post(path, **request_)
    problem = response.json()
    assert (response.status_code, problem["status"]) == (status, status)
    assert problem["type"] == f"urn:quatserve:problem:{slug}"
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["title"]
    assert problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    assert client.post("/classify", **FORM).status_code == 200  # on the same connection
