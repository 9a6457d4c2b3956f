"""Which version of each model is served, which versions were refused, and how one replaces another."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from quatserve.service.artifact import Task
from quatserve.service.engine.admission import Limits
from quatserve.service.engine.batcher import Batcher, Observer
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.loaded import LoadedModel
from quatserve.service.engine.session import CUDA
from quatserve.service.engine.version_loader import Refusal, VersionLoader
from quatserve.service.engine.versions import Repository, read_repository
from quatserve.service.errors import (
    NoDefaultError,
    NothingToServeError,
    SettingsError,
    UnknownModelError,
    VersionRefusedError,
    WrongTaskError,
)
from quatserve.service.models_file import ModelsFile
from quatserve.service.settings import Settings

log = logging.getLogger(__name__)
LOADING_LIMIT_S = 300.0  # per name in a rescan; after it the rescan goes on with the next name
IDLE_CHECK_S = 30.0  # a GPU can be lost while nobody uses it


class Registry:
    """Loads models at the start and on a rescan. A broken version is refused; the old one stays loaded."""

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Callable[[str], Observer | None] = lambda _: None,
        on_stuck: Callable[[], None] = lambda: None,
        load: Callable[[Path, Settings], Model] = load_model,
        loading_limit_s: float = LOADING_LIMIT_S,
    ) -> None:
        self._settings, self._observer, self._on_stuck = settings, observer, on_stuck
        self._versions = VersionLoader(settings, load, loading_limit_s)
        self._loaded: dict[str, LoadedModel] = {}
        self._repository = Repository({}, ModelsFile())  # the models directory when it was last read
        self._expected: set[str] = set()  # on disk at the start, or loaded since
        self._rescanning = asyncio.Lock()
        self._rescan_waits = False  # a rescan has been asked for and has not begun
        self._retiring: set[asyncio.Task[None]] = set()
        self.refused: list[Refusal] = []
        self.unloaded: set[str] = set()  # by request; a rescan does not load them

    # --- finding a model ---

    def loaded(self) -> list[LoadedModel]:
        return [self._loaded[name] for name in sorted(self._loaded)]

    def missing(self) -> list[str]:
        """Names that must be loaded and are not."""
        required = self._repository.models_file.required
        return sorted(set(self._expected if required is None else required) - self._loaded.keys())

    def get(self, name: str) -> LoadedModel:
        try:
            return self._loaded[name]
        except KeyError:
            known = ", ".join(sorted(self._loaded)) or "none"
            raise UnknownModelError(f"no model {name[:80]!r}; served are: {known}") from None

    def resolve(self, task: Task, name: str | None = None) -> LoadedModel:
        """The model of that name, or the default of the task."""
        if name is not None:
            loaded = self.get(name)
            if loaded.model.description.task is not task:
                raise WrongTaskError(f"{name} does {loaded.model.description.task}, not {task}")
            return loaded
        return self._default(task)

    def _default(self, task: Task) -> LoadedModel:
        if chosen := self._repository.default_model(task, self._settings):
            return self.resolve(task, chosen)
        able = [loaded for loaded in self._loaded.values() if loaded.model.description.task is task]
        if not able:
            raise UnknownModelError(f"no model here does {task}")
        if able[1:]:
            names = ", ".join(self.names(task))
            raise NoDefaultError(f"{len(able)} models do {task}; name one with ?model= ({names})")
        return able[0]

    def names(self, task: Task) -> list[str]:
        return [s.model.description.name for s in self.loaded() if s.model.description.task is task]

    # --- loading ---

    def start(self) -> None:
        """Load the highest version of each name that loads; raise NothingToServeError if none does."""
        self._repository = read_repository(self._settings.models_dir)
        self._expected = set(self._repository.versions)
        for name, versions in self._repository.versions.items():
            model, refused = self._versions.choose(name, versions)
            self.refused += refused
            if model:
                self._loaded[name] = self._with_batcher(model)
        if not self._loaded:
            reasons = "; ".join(refusal.reason for refusal in self.refused)
            raise NothingToServeError(f"models directory {self._settings.models_dir}: {reasons}")
        self._check_defaults()

    def start_batchers(self) -> None:
        """Start the threads of the models, so that idle ones are checked. Called from the event loop."""
        for loaded in self._loaded.values():
            loaded.batcher.start()

    def _check_defaults(self) -> None:
        """An unknown default is a wrong setting. A refused one is not: a rescan may load it later."""
        for task in Task:
            name = self._repository.default_model(task, self._settings)
            if name and name not in self._repository.versions:
                there = ", ".join(sorted(self._repository.versions))
                raise SettingsError(f"the default for {task} is {name!r}: there are {there}")
            loaded = self._loaded.get(name)
            if loaded and loaded.model.description.task is not task:
                does = loaded.model.description.task
                raise SettingsError(f"the default for {task} is {name!r}: it does {does}")

    async def rescan(self) -> None:
        """Load and unload until the registry matches the directory; on any error, keep what is loaded.

        Calls during a rescan share the next one: it reads the directory after all of them.
        """
        if self._rescan_waits:
            return
        self._rescan_waits = True
        try:
            await self._rescan()
        except (NothingToServeError, SettingsError) as error:
            log.error("models directory cannot be read; nothing changed", extra={"reason": str(error)})

    async def _rescan(self) -> None:
        async with self._rescanning:
            self._rescan_waits = False
            self._repository = await self._versions.repository()
            on_disk = self._repository.versions
            self._expected &= on_disk.keys()
            for name in self._loaded.keys() - on_disk.keys():
                self._replace(name, None)
            refused = [
                refusal
                for name, versions in on_disk.items()
                if name not in self.unloaded
                for refusal in await self._rescan_one(name, versions)
            ]
            self.refused = refused  # replaced at the end, so that readers never see a partial list

    async def load(self, name: str) -> None:
        """Load the highest version of a name on disk, or raise VersionRefusedError."""
        self.unloaded.discard(name)
        try:
            await self._rescan_name(name)
        except (NothingToServeError, SettingsError) as error:
            raise VersionRefusedError(str(error)) from error
        refused = "; ".join(f"version {r.version}: {r.reason}" for r in self.refused if r.name == name)
        if refused:
            served = self._loaded.get(name)
            goes_on = f"version {served.model.description.version} goes on" if served else "none is served"
            raise VersionRefusedError(f"{name}, {refused}; {goes_on}")
        self.get(name)

    async def _rescan_name(self, name: str) -> None:
        """As a rescan, for one name; the others stay as they are, on disk and in the list of refusals."""
        async with self._rescanning:
            self._repository = await self._versions.repository()
            versions = self._repository.versions.get(name)
            if versions is None:
                self._expected.discard(name)
                self._replace(name, None)
            refused = [] if versions is None else await self._rescan_one(name, versions)
            self.refused = [refusal for refusal in self.refused if refusal.name != name] + refused

    def unload(self, name: str) -> None:
        """Stop serving a name until `load` is called for it."""
        self.get(name)
        self.unloaded.add(name)
        self._replace(name, None)

    async def _rescan_one(self, name: str, versions: list[int]) -> list[Refusal]:
        """Load the best version of a name; return the versions above it that were refused."""
        current = self._loaded.get(name)
        old = current.model if current else None
        gpu_in_use = any(loaded.model.provider == CUDA for loaded in self._loaded.values())
        new, refused = await self._versions.find(name, versions, old, gpu_in_use=gpu_in_use)
        if (
            new is not None and new is not old and name not in self.unloaded
        ):  # it may have been unloaded meanwhile
            self._replace(name, self._with_batcher(new))
        return refused

    def _with_batcher(self, model: Model) -> LoadedModel:
        limits = Limits(
            max_batch=model.max_batch,
            queue_images=self._settings.queue_images,
            queue_timeout_s=self._settings.queue_timeout_s,
            stuck_after_s=self._settings.stuck_after_s,
            buckets=model.buckets,
            idle_check_s=IDLE_CHECK_S if model.provider == CUDA else None,
        )
        name = model.description.name
        batcher = Batcher(
            model.session.run,
            limits,
            terminate=model.session.terminate,
            check=lambda: model.probe(model.session.run),
            on_stuck=self._on_stuck,
            on_start=model.prepare_thread,
            observer=self._observer(name),
            name=f"session-{name}",
        )
        return LoadedModel(model, batcher)

    def _replace(self, name: str, new: LoadedModel | None) -> None:
        """New requests use the new model; requests that hold the old one finish on it."""
        old = self._loaded.pop(name, None)
        self._expected.discard(name)
        if new is not None:
            new.batcher.start()
            self._loaded[name] = new
            self._expected.add(name)
        if old is not None:
            log.info("model replaced" if new else "model removed", extra={"model": name})
            task = asyncio.get_running_loop().create_task(old.retire())
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Finish all accepted work and end every thread."""
        await asyncio.gather(*(loaded.retire() for loaded in self._loaded.values()), *self._retiring)
