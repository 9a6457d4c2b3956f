"""The registry without a server: replacement, leases and the end of threads."""

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quatserve.service.artifact import Task
from quatserve.service.engine.cpus import NICENESS_STEP
from quatserve.service.engine.load import Model, load_model
from quatserve.service.engine.registry import Registry
from quatserve.service.engine.versions import Repository, read_repository
from quatserve.service.errors import (
    BatcherClosedError,
    NoDefaultError,
    SettingsError,
    UnknownModelError,
    VersionRefusedError,
    WrongTaskError,
)
from quatserve.service.models_file import MODELS_FILE
from quatserve.service.settings import Settings
from quatserve.service.web.catalogue import readiness
from quatserve.service.web.lifecycle import Lifecycle
from tests.service.artifacts import (
    CLASSIFIER,
    SEGMENTER,
    write_both,
    write_classifier,
    write_segmenter,
    write_truncated,
)


def registry_of(root: Path) -> Registry:
    registry = Registry(Settings(models_dir=root, max_batch=2, threads=1))
    registry.start()
    return registry


def session_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("session-")]


async def infer(registry: Registry) -> int:
    """Run one image on the classifier, and return the version that did it."""
    with registry.get(CLASSIFIER).lease() as serving, serving.batcher.admit(1):
        await serving.batcher.infer([np.zeros((32, 32, 3), np.uint8)])
    return serving.model.description.version


def test_what_counts_as_an_artifact(tmp_path: Path) -> None:
    for name in ("a/1", "a/12", "a/2", "a/0", "a/01", "a/x", "A/1", "b", "c-d/3", ".git/1", "-e/1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "f").write_text("a file")
    assert read_repository(tmp_path).versions == {"a": [12, 2, 1], "c-d": [3]}


def test_a_name_that_cannot_be_listed_concerns_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a directory of another user; as root, which tests may be, there is none."""
    readable = Path.iterdir

    def locked(path: Path) -> Iterator[Path]:
        if path.name == SEGMENTER:
            raise PermissionError(13, "Permission denied")
        return readable(path)

    async def scenario() -> None:
        registry = registry_of(write_both(tmp_path))
        monkeypatch.setattr(Path, "iterdir", locked)
        write_classifier(tmp_path, version=2)
        await registry.rescan()
        assert [s.model.description.version for s in registry.loaded()] == [2, 1]
        assert [(r.name, r.version) for r in registry.refused] == [(SEGMENTER, 0)]
        assert "cannot be read" in registry.refused[0].reason
        await registry.close()
        started = registry_of(tmp_path)
        assert (started.names(Task.CLASSIFICATION), started.missing()) == ([CLASSIFIER], [SEGMENTER])
        await started.close()

    asyncio.run(scenario())


def test_models_are_found_by_name_and_by_task(tmp_path: Path) -> None:
    registry = registry_of(write_both(tmp_path))
    assert registry.resolve(Task.SEGMENTATION).model.description.name == SEGMENTER
    assert registry.resolve(Task.SEGMENTATION, SEGMENTER).model.description.name == SEGMENTER
    with pytest.raises(WrongTaskError):
        registry.resolve(Task.SEGMENTATION, CLASSIFIER)
    with pytest.raises(UnknownModelError, match=CLASSIFIER):
        registry.resolve(Task.SEGMENTATION, "nobody")


def test_two_of_a_task_need_a_choice(tmp_path: Path) -> None:
    write_classifier(tmp_path)
    write_classifier(tmp_path, name="another")
    with pytest.raises(NoDefaultError, match="another, tiny-colours"):
        registry_of(tmp_path).resolve(Task.CLASSIFICATION)


def write_models_file(root: Path, **content: object) -> None:
    (root / MODELS_FILE).write_text(json.dumps(content))


def test_models_json_names_the_default_of_a_task_and_a_setting_overrides_it(tmp_path: Path) -> None:
    write_classifier(tmp_path)
    write_classifier(tmp_path, name="another")
    write_models_file(tmp_path, defaults={"classification": "another"})
    settings = Settings(models_dir=tmp_path, max_batch=2, threads=1)
    for chosen, expected in (("", "another"), (CLASSIFIER, CLASSIFIER)):
        registry = Registry(settings.model_copy(update={"default_classifier": chosen}))
        registry.start()
        assert registry.resolve(Task.CLASSIFICATION).model.description.name == expected


def test_a_pin_goes_back_to_an_earlier_version_and_its_removal_to_the_highest(tmp_path: Path) -> None:
    write_classifier(tmp_path)
    write_classifier(tmp_path, 2)

    async def test() -> None:
        registry = registry_of(tmp_path)
        assert await infer(registry) == 2
        write_models_file(tmp_path, pins={CLASSIFIER: 1})
        await registry.rescan()
        assert await infer(registry) == 1
        write_models_file(tmp_path)
        await registry.rescan()
        assert await infer(registry) == 2
        await registry.close()

    asyncio.run(test())


def test_a_pin_to_a_version_that_is_not_there_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    write_classifier(tmp_path)

    async def test() -> None:
        registry = registry_of(tmp_path)
        write_models_file(tmp_path, pins={CLASSIFIER: 7})
        await registry.rescan()
        assert await infer(registry) == 1
        assert [(refusal.name, refusal.version) for refusal in registry.refused] == [(CLASSIFIER, 7)]
        await registry.close()

    asyncio.run(test())


def test_the_required_names_of_models_json_are_those_that_can_be_missing(tmp_path: Path) -> None:
    write_truncated(write_both(tmp_path), 2)
    shutil.rmtree(tmp_path / CLASSIFIER / "1")  # the classifier cannot be loaded
    assert registry_of(tmp_path).missing() == [CLASSIFIER]
    write_models_file(tmp_path, required=[SEGMENTER])
    assert registry_of(tmp_path).missing() == []
    write_models_file(tmp_path, required=[SEGMENTER, "nobody"])
    assert registry_of(tmp_path).missing() == ["nobody"]


def test_a_models_json_that_cannot_be_used_stops_the_start_and_not_the_service(tmp_path: Path) -> None:
    write_classifier(tmp_path)

    async def test() -> None:
        registry = registry_of(tmp_path)
        write_models_file(tmp_path, pin={})
        await registry.rescan()
        assert await infer(registry) == 1
        await registry.close()

    asyncio.run(test())
    with pytest.raises(SettingsError, match=r"models\.json: pin: Extra inputs"):
        registry_of(tmp_path)


def test_an_old_model_ends_its_thread_when_its_last_request_is_through(tmp_path: Path) -> None:
    write_classifier(tmp_path)

    async def test() -> None:
        registry = registry_of(tmp_path)
        assert await infer(registry) == 1
        with registry.get(CLASSIFIER).lease() as old:
            write_classifier(tmp_path, 2)
            await registry.rescan()
            assert await infer(registry) == 2
            with old.batcher.admit(1):  # the old one still serves whoever holds it
                await old.batcher.infer([np.zeros((32, 32, 3), np.uint8)])
            assert len(session_threads()) == 2
        await asyncio.gather(*registry._retiring)
        assert len(session_threads()) == 1
        with pytest.raises(BatcherClosedError):
            old.batcher.check_room(1)
        await registry.close()
        assert session_threads() == []

    asyncio.run(test())


def test_rescanning_what_has_not_changed_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        registry = registry_of(write_both(tmp_path))
        before = registry.loaded()
        await asyncio.gather(registry.rescan(), registry.rescan())
        assert registry.loaded() == before

    asyncio.run(test())


def test_a_refusal_is_forgotten_once_it_is_mended(tmp_path: Path) -> None:
    async def test() -> None:
        write_classifier(tmp_path)
        registry = registry_of(tmp_path)
        graph = write_classifier(tmp_path, 2) / "model.onnx"
        good = graph.read_bytes()
        graph.write_bytes(good[:-1])
        await registry.rescan()
        assert [(r.version, "sha256" in r.reason) for r in registry.refused] == [(2, True)]
        graph.write_bytes(good)
        await registry.rescan()
        assert registry.refused == []
        assert await infer(registry) == 2
        await registry.close()

    asyncio.run(test())


def test_a_model_unloaded_while_its_next_version_loads_stays_unloaded(tmp_path: Path) -> None:
    loading, go_on = threading.Event(), threading.Event()

    def load(directory: Path, settings: Settings) -> Model:
        if directory.name == "2":
            loading.set()
            go_on.wait(10)
        return load_model(directory, settings)

    async def test() -> None:
        write_classifier(tmp_path)
        registry = Registry(Settings(models_dir=tmp_path, max_batch=2, threads=1), load=load)
        registry.start()
        write_classifier(tmp_path, 2)
        rescan = asyncio.create_task(registry.rescan())
        assert await asyncio.to_thread(loading.wait, 10)
        registry.unload(CLASSIFIER)
        go_on.set()
        await rescan
        assert registry.loaded() == []
        await registry.load(CLASSIFIER)
        assert await infer(registry) == 2
        await registry.close()

    asyncio.run(test())


def test_a_version_that_never_loads_holds_nothing_else(tmp_path: Path) -> None:
    go_on, begun = threading.Event(), []

    def load(directory: Path, settings: Settings) -> Model:
        if directory.parts[-2:] == (CLASSIFIER, "2"):
            begun.append(directory)
            go_on.wait(60)
        return load_model(directory, settings)

    async def test() -> None:
        settings = Settings(models_dir=write_both(tmp_path), max_batch=2, threads=1)
        registry = Registry(settings, load=load, loading_limit_s=0.2)
        registry.start()
        write_classifier(tmp_path, 2)
        for _ in range(2):
            await registry.rescan()
            assert [(r.name, r.version) for r in registry.refused] == [(CLASSIFIER, 2)]
            assert "not loaded within 0.2 s" in registry.refused[0].reason
        assert len(begun) == 1
        assert await infer(registry) == 1
        go_on.set()
        registry._versions._limit_s = 60
        await registry.rescan()
        assert (registry.refused, await infer(registry)) == ([], 2)
        await registry.close()

    asyncio.run(test())


def test_a_new_name_that_is_broken_does_not_make_it_unready(tmp_path: Path) -> None:
    async def test() -> None:
        write_classifier(tmp_path)
        registry = registry_of(tmp_path)
        (write_classifier(tmp_path, name="new-and-broken") / "probe.npz").unlink()
        await registry.rescan()
        assert registry.missing() == []
        assert [r.name for r in registry.refused] == ["new-and-broken"]

    asyncio.run(test())


def test_the_models_directory_may_hang_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def hanging(models_dir: Path) -> Repository:
        go_on.wait(60)
        return read_repository(models_dir)

    async def test() -> None:
        settings = Settings(models_dir=write_both(tmp_path), max_batch=2, threads=1)
        registry = Registry(settings)
        registry.start()
        monkeypatch.setattr("quatserve.service.engine.version_loader.read_repository", hanging)
        rescanning = asyncio.create_task(registry.rescan())
        assert await infer(registry) == 1
        assert not rescanning.done()
        go_on.set()
        await rescanning
        go_on.clear()
        registry._versions._limit_s = 0.2
        with pytest.raises(VersionRefusedError, match=r"not read within 0\.2 s"):
            await registry.load(CLASSIFIER)
        go_on.set()
        await registry.close()

    asyncio.run(test())


def test_refusals_stand_until_the_next_are_known(tmp_path: Path) -> None:
    seen = []

    async def test() -> None:
        def load(directory: Path, settings: Settings) -> Model:
            seen.append([(r.name, r.version) for r in registry.refused])
            return load_model(directory, settings)

        write_truncated(write_both(tmp_path), 2)
        registry = Registry(Settings(models_dir=tmp_path, max_batch=2, threads=1), load=load)
        registry.start()
        seen.clear()
        await registry.rescan()
        assert seen == [[(CLASSIFIER, 2)]]
        await registry.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("name", "told"), [("nobody", f"there are {SEGMENTER}"), (SEGMENTER, "it does segmentation")]
)
def test_a_default_that_cannot_be_is_refused_at_the_start(tmp_path: Path, name: str, told: str) -> None:
    write_both(tmp_path)
    shutil.rmtree(tmp_path / CLASSIFIER)
    registry = Registry(Settings(models_dir=tmp_path, max_batch=2, threads=1, default_classifier=name))
    with pytest.raises(SettingsError, match=f"the default for classification is '{name}': {told}"):
        registry.start()


def test_a_default_that_was_refused_may_come_back(tmp_path: Path) -> None:
    write_truncated(write_both(tmp_path), 2)
    shutil.rmtree(tmp_path / CLASSIFIER / "1")
    settings = Settings(models_dir=tmp_path, max_batch=2, threads=1, default_classifier=CLASSIFIER)
    registry = Registry(settings)
    registry.start()
    assert registry.missing() == [CLASSIFIER]


def test_nothing_served_is_not_ready(tmp_path: Path) -> None:
    async def test() -> None:
        write_classifier(tmp_path)
        registry = registry_of(tmp_path)
        assert readiness(registry, Lifecycle()).ready
        registry.unload(CLASSIFIER)
        assert not readiness(registry, Lifecycle()).ready
        await registry.close()

    asyncio.run(test())


def test_a_version_is_loaded_behind_the_event_loop(tmp_path: Path) -> None:
    found = []

    def load(directory: Path, settings: Settings) -> Model:
        found.append(os.getpriority(os.PRIO_PROCESS, 0))
        return load_model(directory, settings)

    async def test() -> None:
        registry = Registry(Settings(models_dir=write_both(tmp_path), max_batch=2, threads=1), load=load)
        registry.start()
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        write_classifier(tmp_path, 2)
        await registry.rescan()
        assert found == [ours, ours, min(19, ours + NICENESS_STEP)]
        await registry.close()

    asyncio.run(test())


def counting(tmp_path: Path) -> tuple[Registry, list[str]]:
    """A registry, and the names of what it loads after its start."""
    loads: list[str] = []

    def load(directory: Path, settings: Settings) -> Model:
        loads.append(directory.parent.name)
        return load_model(directory, settings)

    registry = Registry(Settings(models_dir=tmp_path, max_batch=2, threads=1), load=load)
    registry.start()
    loads.clear()
    return registry, loads


def test_rescans_asked_for_during_a_rescan_are_one(tmp_path: Path) -> None:
    """Each loads the broken version again; 200 signals loaded it 185 times."""
    write_classifier(tmp_path)
    write_truncated(tmp_path, version=2)

    async def test() -> None:
        registry, loads = counting(tmp_path)
        first = asyncio.create_task(registry.rescan())
        while not loads:  # noqa: ASYNC110  # then it has read the directory
            await asyncio.sleep(0.001)
        write_classifier(tmp_path, version=3)
        write_truncated(tmp_path, version=4)
        await asyncio.gather(first, *(registry.rescan() for _ in range(20)))
        assert registry.get(CLASSIFIER).model.description.version == 3  # what came last is not missed
        assert len(loads) <= 4  # 2; then 4 and 3; then 4, if the first rescan was over before
        await registry.close()

    asyncio.run(test())


def test_a_rescan_that_fails_does_not_end_rescanning(tmp_path: Path) -> None:
    write_classifier(tmp_path)

    async def test() -> None:
        registry, _ = counting(tmp_path)
        write_models_file(tmp_path, pins="nonsense")
        await registry.rescan()
        write_models_file(tmp_path)
        write_classifier(tmp_path, version=2)
        await registry.rescan()
        assert registry.get(CLASSIFIER).model.description.version == 2
        await registry.close()

    asyncio.run(test())


def test_loading_a_name_leaves_the_others_alone(tmp_path: Path) -> None:
    write_both(tmp_path)
    write_truncated(tmp_path, version=2)

    async def test() -> None:
        registry, loads = counting(tmp_path)
        refused = registry.refused
        write_segmenter(tmp_path, version=2)
        await registry.load(SEGMENTER)
        assert loads == [SEGMENTER]
        assert registry.get(SEGMENTER).model.description.version == 2
        assert registry.refused == refused  # that of the other name
        shutil.rmtree(tmp_path / SEGMENTER)
        with pytest.raises(UnknownModelError):
            await registry.load(SEGMENTER)
        await registry.close()

    asyncio.run(test())
