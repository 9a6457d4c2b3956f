"""Chooses the version of a name to serve: the highest that loads, beside serving and within a time limit."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quatserve.service.engine.background import run_in_background
from quatserve.service.engine.cpus import lower_priority
from quatserve.service.engine.load import Model
from quatserve.service.engine.session import CUDA
from quatserve.service.engine.versions import Repository, read_repository
from quatserve.service.errors import ArtifactError, DeviceUnavailableError, NothingToServeError
from quatserve.service.settings import Device, Settings

log = logging.getLogger(__name__)
NO_VERSION = 0  # sentinel for an unreadable directory; real versions start at 1


@dataclass(frozen=True)
class Refusal:
    name: str
    version: int
    reason: str


Choice = tuple[Model | None, list[Refusal]]  # the version to serve, and the refused versions above it


class VersionLoader:
    """Lists the models directory and loads from it. A load that hangs is awaited again, not repeated."""

    def __init__(
        self, settings: Settings, load: Callable[[Path, Settings], Model], loading_limit_s: float
    ) -> None:
        self._settings, self._load, self._limit_s = settings, load, loading_limit_s
        self._hanging: dict[str, Future[Choice]] = {}  # loads that outlasted the limit

    async def repository(self) -> Repository:
        """Run `read_repository` on its own thread: a hanging disk must not block the event loop."""
        models_dir, limit_s = self._settings.models_dir, self._limit_s
        listing = run_in_background(partial(read_repository, models_dir), "listing-models")
        try:
            return await asyncio.wait_for(asyncio.wrap_future(listing), limit_s)
        except TimeoutError:
            raise NothingToServeError(
                f"models directory {models_dir}: not read within {limit_s:g} s"
            ) from None

    async def find(
        self, name: str, versions: list[int], current: Model | None, *, gpu_in_use: bool
    ) -> Choice:
        """Choose while models serve: on a thread of low priority, and never from the GPU to the CPU."""
        loading = self._hanging.pop(name, None)
        if loading is None or loading.done():
            on_gpu = current.provider == CUDA if current else gpu_in_use
            loading = run_in_background(
                partial(self._choose_quietly, name, versions, current, on_gpu), f"loading-{name}"
            )
        try:
            return await asyncio.wait_for(asyncio.wrap_future(loading), self._limit_s)
        except TimeoutError:
            self._hanging[name] = loading
            version = max(versions, default=NO_VERSION)
            return None, [_refuse(name, version, f"not loaded within {self._limit_s:g} s")]

    def _choose_quietly(self, name: str, versions: list[int], current: Model | None, on_gpu: bool) -> Choice:
        lower_priority()
        settings = self._settings.model_copy(update={"device": Device.CUDA}) if on_gpu else self._settings
        return self._choose(name, versions, current, settings)

    def choose(self, name: str, versions: list[int]) -> Choice:
        """Choose at the start, where a device that is not there is fatal."""
        return self._choose(name, versions, None, self._settings, DeviceUnavailableError)

    def _choose(
        self,
        name: str,
        versions: list[int],
        current: Model | None,
        settings: Settings,
        fatal: type[Exception] | tuple[()] = (),
    ) -> Choice:
        """Return the highest version that loads. The current version is not loaded again."""
        if not versions:
            return current, [_refuse(name, NO_VERSION, f"{settings.models_dir / name} cannot be read")]
        refused: list[Refusal] = []
        for version in versions:
            if current is not None and current.description.version == version:
                return current, refused
            try:
                return self._load(settings.models_dir / name / str(version), settings), refused
            except fatal:
                raise
            except (ArtifactError, DeviceUnavailableError) as error:
                refused.append(_refuse(name, version, str(error)))
        return None, refused


def _refuse(name: str, version: int, reason: str) -> Refusal:
    log.error("version refused", extra={"model": name, "version": version, "reason": reason})
    return Refusal(name, version, reason)
