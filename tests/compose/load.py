"""Clients that send the same picture again and again, and count what becomes of each request."""

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.compose.project import SAMPLES, Project

CLIENTS = 8
NO_ANSWER = 0


class Load:
    """Requests by their status, NO_ANSWER where the connection ended, and the versions that answered."""

    def __init__(self, project: Project, headers: Mapping[str, str]) -> None:
        self._project, self._picture = project, (SAMPLES / "cat.png").read_bytes()
        self._headers = {"Content-Type": "image/png", **headers}
        self.statuses: Counter[int] = Counter()
        self.versions: list[int] = []
        self._over, self._lock = threading.Event(), threading.Lock()

    def _work(self) -> None:
        while not self._over.is_set():
            status, version = self._ask()
            with self._lock:
                self.statuses[status] += 1
                self.versions += [version] if version else []

    def _ask(self) -> tuple[int, int]:
        try:
            status, body = self._project.request("POST", "/classify", self._picture, self._headers)
        except (OSError, http.client.HTTPException):
            return NO_ANSWER, 0
        return status, json.loads(body)["version"] if status == http.HTTPStatus.OK else 0

    @contextmanager
    def running(self) -> Iterator["Load"]:
        threads = [threading.Thread(target=self._work) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
