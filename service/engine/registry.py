"""The models directory as served: which version of which name, what was refused, how one replaces another."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quatserve.service.artifact import Task
from quatserve.service.engine.background import aside
from quatserve.service.engine.batcher import Batcher, Limits, Observer
from quatserve.service.engine.cpus import step_back
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.loaded import Serving
from quatserve.service.engine.versions import versions_on_disk
from quatserve.service.errors import (
    ArtifactError,
    DeviceUnavailableError,
    NoDefaultError,
    NothingToServeError,
    SettingsError,
    UnknownModelError,
    VersionRefusedError,
    WrongTaskError,
)
from quatserve.service.settings import Settings

log = logging.getLogger(__name__)
NO_VERSION = 0  # of a name whose directory cannot be listed: true ones begin with 1
LOADING_LIMIT_S = 300.0  # for what a rescan finds of a name; beyond it the others have their turn


@dataclass(frozen=True)
class Refusal:
    name: str
    version: int
    reason: str


def _refuse(name: str, version: int, reason: str) -> Refusal:
    log.error("version refused", extra={"model": name, "version": version, "reason": reason})
    return Refusal(name, version, reason)


Found = tuple[Model | None, list[Refusal]]  # the version to serve, and those above it that cannot be


class Registry:
    """Loads at the start, rescans on demand; a broken version is refused and the old one goes on."""

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Callable[[str], Observer | None] = lambda _: None,
        on_stuck: Callable[[], None] = lambda: None,
        load: Callable[[Path, Settings], Model] = load_model,
        loading_limit_s: float = LOADING_LIMIT_S,
    ) -> None:
        self._settings, self._observer, self._on_stuck, self._load = settings, observer, on_stuck, load
        self._serving: dict[str, Serving] = {}
        self._required: set[str] = set()  # names that must be served for the service to be ready
        self._rescanning = asyncio.Lock()
        self._loading_limit_s = loading_limit_s
        self._hanging: dict[str, Future[Found]] = {}  # past the limit
        self._retiring: set[asyncio.Task[None]] = set()
        self.refused: list[Refusal] = []
        self.unloaded: set[str] = set()  # by hand: a rescan leaves them alone

    # --- finding a model ---

    def serving(self) -> list[Serving]:
        return [self._serving[name] for name in sorted(self._serving)]

    def missing(self) -> list[str]:
        """Names that should be served and are not."""
        return sorted(self._required - self._serving.keys())

    def get(self, name: str) -> Serving:
        try:
            return self._serving[name]
        except KeyError:
            known = ", ".join(sorted(self._serving)) or "none"
            raise UnknownModelError(f"no model {name[:80]!r}; served are: {known}") from None

    def resolve(self, task: Task, name: str | None = None) -> Serving:
        """The model of that name, or the default of the task."""
        if name is not None:
            serving = self.get(name)
            if serving.model.description.task is not task:
                raise WrongTaskError(f"{name} does {serving.model.description.task}, not {task}")
            return serving
        return self._default(task)

    def _default(self, task: Task) -> Serving:
        if chosen := self._settings.default_model(task):
            return self.resolve(task, chosen)
        able = [serving for serving in self._serving.values() if serving.model.description.task is task]
        if not able:
            raise UnknownModelError(f"no model here does {task}")
        if able[1:]:
            names = ", ".join(self.names(task))
            raise NoDefaultError(f"{len(able)} models do {task}; name one with ?model= ({names})")
        return able[0]

    def names(self, task: Task) -> list[str]:
        return [s.model.description.name for s in self.serving() if s.model.description.task is task]

    # --- loading ---

    def start(self) -> None:
        """Load the highest version of every name that can be; NothingToServeError where none can."""
        on_disk = versions_on_disk(self._settings.models_dir)
        self._required = set(on_disk)
        for name, versions in on_disk.items():
            loaded, refused = self._best_of(name, versions, None, DeviceUnavailableError)
            self.refused += refused
            if loaded:
                self._serving[name] = self._serve(loaded)
        if not self._serving:
            reasons = "; ".join(refusal.reason for refusal in self.refused)
            raise NothingToServeError(f"models directory {self._settings.models_dir}: {reasons}")
        self._check_defaults(on_disk)

    def _check_defaults(self, on_disk: Iterable[str]) -> None:
        """A default that cannot be is a mistake of the settings; one that was refused may come back."""
        for task in Task:
            name = self._settings.default_model(task)
            if name and name not in on_disk:
                there = ", ".join(sorted(on_disk))
                raise SettingsError(f"the default for {task} is {name!r}: there are {there}")
            serving = self._serving.get(name)
            if serving and serving.model.description.task is not task:
                does = serving.model.description.task
                raise SettingsError(f"the default for {task} is {name!r}: it does {does}")

    async def rescan(self) -> None:
        """Bring what is served in line with the directory; whatever goes wrong, what is served goes on."""
        try:
            await self._rescan()
        except NothingToServeError as error:
            log.error("models directory cannot be read; nothing changed", extra={"reason": str(error)})

    async def _rescan(self) -> None:
        async with self._rescanning:
            on_disk = await self._on_disk()
            self._required &= on_disk.keys()
            for name in self._serving.keys() - on_disk.keys():
                self._replace(name, None)
            refused = [
                refusal
                for name, versions in on_disk.items()
                if name not in self.unloaded
                for refusal in await self._rescan_one(name, versions)
            ]
            self.refused = refused  # until now those of before stand

    async def _on_disk(self) -> dict[str, list[int]]:
        """As `versions_on_disk`, on a thread of its own: a disk may hang, and the event loop must not."""
        models_dir, limit_s = self._settings.models_dir, self._loading_limit_s
        listing = aside(partial(versions_on_disk, models_dir), "listing-models")
        try:
            return await asyncio.wait_for(asyncio.wrap_future(listing), limit_s)
        except TimeoutError:
            raise NothingToServeError(
                f"models directory {models_dir}: not read within {limit_s:g} s"
            ) from None

    async def load(self, name: str) -> None:
        """Serve the highest version of a name on disk; VersionRefusedError where that one cannot be."""
        self.unloaded.discard(name)
        try:
            await self._rescan()
        except NothingToServeError as error:
            raise VersionRefusedError(str(error)) from error
        refused = "; ".join(f"version {r.version}: {r.reason}" for r in self.refused if r.name == name)
        if refused:
            served = self._serving.get(name)
            goes_on = f"version {served.model.description.version} goes on" if served else "none is served"
            raise VersionRefusedError(f"{name}, {refused}; {goes_on}")
        self.get(name)

    def unload(self, name: str) -> None:
        """Stop serving a name until it is loaded again."""
        self.get(name)
        self.unloaded.add(name)
        self._replace(name, None)

    async def _rescan_one(self, name: str, versions: list[int]) -> list[Refusal]:
        """Serve the best version of a name; what could not be, of those above it."""
        current = self._serving.get(name)
        old = current.model if current else None
        new, refused = await self._find(name, versions, old)
        if new is not None and new is not old and name not in self.unloaded:  # meanwhile
            self._replace(name, self._serve(new))
        return refused

    async def _find(self, name: str, versions: list[int], current: Model | None) -> Found:
        """The best on a thread of its own, within the limit; one that hangs is not begun a second time."""
        loading = self._hanging.pop(name, None)
        if loading is None or loading.done():
            loading = aside(partial(self._best_of_behind, name, versions, current), f"loading-{name}")
        try:
            return await asyncio.wait_for(asyncio.wrap_future(loading), self._loading_limit_s)
        except TimeoutError:
            self._hanging[name] = loading
            return None, [
                _refuse(
                    name, max(versions, default=NO_VERSION), f"not loaded within {self._loading_limit_s:g} s"
                )
            ]

    def _best_of_behind(self, name: str, versions: list[int], current: Model | None) -> Found:
        """As `_best_of`, while others are served."""
        step_back()
        return self._best_of(name, versions, current)

    def _best_of(
        self, name: str, versions: list[int], current: Model | None, fatal: type[Exception] | tuple[()] = ()
    ) -> Found:
        """The highest version that loads; the current one is not loaded again."""
        if not versions:
            reason = f"{self._settings.models_dir / name} cannot be read"
            return current, [_refuse(name, NO_VERSION, reason)]
        refused: list[Refusal] = []
        for version in versions:
            if current is not None and current.description.version == version:
                return current, refused
            try:
                return self._load(self._settings.models_dir / name / str(version), self._settings), refused
            except fatal:
                raise
            except (ArtifactError, DeviceUnavailableError) as error:
                refused.append(_refuse(name, version, str(error)))
        return None, refused

    def _serve(self, model: Model) -> Serving:
        limits = Limits(
            max_batch=model.max_batch,
            queue_images=self._settings.queue_images,
            queue_timeout_s=self._settings.queue_timeout_s,
            stuck_after_s=self._settings.stuck_after_s,
            buckets=model.buckets,
        )
        name = model.description.name
        batcher = Batcher(
            model.session.run,
            limits,
            terminate=model.session.terminate,
            check=lambda: model.probe(model.session.run),
            on_stuck=self._on_stuck,
            on_start=step_back,
            observer=self._observer(name),
            name=f"session-{name}",
        )
        return Serving(model, batcher)

    def _replace(self, name: str, new: Serving | None) -> None:
        """Requests from now on see the new model; those that hold the old one finish on it."""
        old = self._serving.pop(name, None)
        self._required.discard(name)
        if new is not None:
            self._serving[name] = new
            self._required.add(name)
        if old is not None:
            log.info("model replaced" if new else "model removed", extra={"model": name})
            task = asyncio.get_running_loop().create_task(old.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Finish everything that was accepted and end every thread."""
        await asyncio.gather(*(serving.retire() for serving in self._serving.values()), *self._retiring)
