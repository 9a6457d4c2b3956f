"""An artifact directory is written atomically."""

import threading
from pathlib import Path

import pytest

from quatserve.export.artifact.staging import name_and_version, staged
from quatserve.training.errors import UserError

MARK = "model.json"


def fill(directory: Path, text: str) -> None:
    (directory / "first").write_text(text)
    (directory / MARK).write_text(text)


def fail_halfway(out: Path) -> None:
    with staged(out, force=True) as directory:
        fill(directory, "half")
        raise RuntimeError


def test_the_directory_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    out = tmp_path / "models" / "name" / "1"
    with staged(out, force=False) as directory:
        fill(directory, "new")
        assert not out.exists()
        assert directory.parent == out.parent
    assert [path.name for path in out.parent.iterdir()] == ["1"]
    assert out.stat().st_mode & 0o777 == 0o755


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fail_halfway(tmp_path / "models" / "name" / "1")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_directories_that_existed(tmp_path: Path) -> None:
    (tmp_path / "models" / "name" / "1").mkdir(parents=True)
    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "models" / "name" / "2", force=False):
        raise KeyboardInterrupt
    assert [path.name for path in (tmp_path / "models" / "name").iterdir()] == ["1"]


def test_an_existing_artifact_is_kept_without_force(tmp_path: Path) -> None:
    out = tmp_path / "name" / "1"
    with staged(out, force=False) as directory:
        fill(directory, "old")
    with pytest.raises(UserError, match="--force"), staged(out, force=False):
        pass
    assert (out / MARK).read_text() == "old"


def test_force_replaces_the_artifact_and_a_failure_keeps_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "name" / "1"
    with staged(out, force=False) as directory:
        fill(directory, "old")
    with pytest.raises(RuntimeError):
        fail_halfway(out)
    assert (out / MARK).read_text() == "old"
    with staged(out, force=True) as directory:
        fill(directory, "new")
    assert (out / MARK).read_text() == "new"
    assert [path.name for path in out.parent.iterdir()] == ["1"]


def test_a_signal_during_the_replacement_restores_the_old_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "name" / "1"
    with staged(out, force=False) as directory:
        fill(directory, "old")

    def interrupted(path: Path, target: Path) -> Path:
        if target == out and path.name.startswith(".1-") and not path.name.endswith("-old"):
            raise KeyboardInterrupt
        return rename(path, target)

    rename = Path.rename
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), staged(out, force=True) as directory:
        fill(directory, "new")
    assert (out / MARK).read_text() == "old"
    assert [path.name for path in out.parent.iterdir()] == ["1"]


def overtaken(out: Path) -> None:
    with staged(out, force=False) as slow:
        fill(slow, "slow")
        with staged(out, force=False) as quick:
            fill(quick, "quick")


def fail_beside_another(out: Path, other: Path) -> None:
    with staged(out, force=False):
        with staged(other, force=False) as directory:
            fill(directory, "other")
        raise RuntimeError("the reason")


def test_an_artifact_that_another_build_wrote_meanwhile_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "name" / "1"
    with pytest.raises(UserError, match="--force"):
        overtaken(out)
    assert (out / MARK).read_text() == "quick"


def test_cleaning_up_beside_another_build_does_not_hide_the_error(tmp_path: Path) -> None:
    parent = tmp_path / "models" / "name"
    with pytest.raises(RuntimeError, match="the reason"):
        fail_beside_another(parent / "1", parent / "2")
    assert [path.name for path in parent.iterdir()] == ["2"]


def test_force_replaces_only_artifacts(tmp_path: Path) -> None:
    out = tmp_path / "name" / "1"
    out.mkdir(parents=True)
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="no artifact"), staged(out, force=True):
        pass
    assert (out / "thesis.txt").exists()


def test_a_reader_never_sees_an_incomplete_artifact(tmp_path: Path) -> None:
    """The artifact is replaced 40 times while a thread reads its description."""
    out, stop, seen = tmp_path / "name" / "1", threading.Event(), set()

    def read() -> None:
        while not stop.is_set():
            try:
                mark = (out / MARK).read_text()
            except OSError:
                continue
            seen.add(mark in {str(i) for i in range(40)})

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(40):
        with staged(out, force=True) as directory:
            fill(directory, str(i))
    stop.set()
    reader.join()
    assert seen == {True}
    assert (out / "first").read_text() == "39"


def test_an_unwritable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="name another --out"),
        staged(tmp_path / "file" / "name" / "1", force=False),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "path", ["Name/1", "name/0", "name/01", "name/one", "na_me/1", "name/-1", "name/20261118120000"]
)
def test_names_outside_the_contract_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(UserError, match="NAME/VERSION"):
        name_and_version(tmp_path / path)


def test_name_and_version() -> None:
    assert name_and_version(Path("models/cifar10-quaternion/12")) == ("cifar10-quaternion", 12)
