"""`quatserve classify` and `segment` as processes: files in, files out, an exit code."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quatserve.service.bulk.tables import CsvTable, open_table
from quatserve.service.command_line import variable_of
from quatserve.service.errors import SettingsError
from tests.service.artifacts import LABELS, expected_probabilities, write_both, write_classifier
from tests.service.harness import REPOSITORY, encoded, noise, plain, wait_until


def command(*arguments: object, models: Path) -> list[str]:
    return [sys.executable, "-m", "quatserve", *map(str, arguments), "--models-dir", str(models)]


def run(
    *arguments: object, models: Path, stdin: bytes = b"", cwd: Path = REPOSITORY, **settings: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*arguments, models=models),
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)}
        | {variable_of(name): value for name, value in settings.items()},
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    out, error = (stream.decode(errors="surrogateescape") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, error)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Seventy small images in two folders, some of another size and format."""
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for i in range(64):
        (folder / f"{i:02}.png").write_bytes(encoded(noise(32, 32, seed=i)))
    for i in range(6):
        (folder / "deep" / f"{i}.JPG").write_bytes(encoded(noise(100 + i, 40, seed=i), "BMP"))
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as stream:
        return list(csv.DictReader(stream))


# --- classify ---


def test_a_folder_becomes_a_table_in_the_order_of_its_names(models_dir: Path, photos: Path) -> None:
    out = photos.parent / "results.csv"
    done = run("classify", photos, "--out", out, "--top-k", 3, models=models_dir)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("70 done at ")
    rows = rows_of(out)
    names = [f"{i:02}.png" for i in range(64)] + [f"deep/{i}.JPG" for i in range(6)]
    assert [row["file"] for row in rows] == [str(photos / name) for name in names]
    expected = expected_probabilities(np.stack([noise(32, 32, seed=i) for i in range(64)]))
    for row, shares in zip(rows, expected, strict=False):
        order = np.argsort(-shares)
        assert [row["label"], row["label_2"], row["label_3"]] == [LABELS[i] for i in order]
        found = [float(row[name]) for name in ("probability", "probability_2", "probability_3")]
        np.testing.assert_allclose(found, shares[order], atol=1e-5)
        assert row["model"] == "tiny-colours/1"


def test_json_lines_hold_what_the_service_answers(models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(plain((140, 120, 100)))
    out = tmp_path / "new" / "results.jsonl"  # its folder is made
    assert run("classify", tmp_path / "red.png", "--out", out, models=models_dir).returncode == 0
    (line,) = out.read_text().splitlines()
    share = round(float(expected_probabilities(np.full((1, 1, 1, 3), [140, 120, 100], np.uint8))[0, 0]), 6)
    assert json.loads(line) == {
        "file": str(tmp_path / "red.png"),
        "model": "tiny-colours/1",
        "predictions": [{"label": "red", "index": 0, "probability": pytest.approx(share, abs=2e-6)}],
    }


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_bad_files_are_reported_and_skipped(models_dir: Path, photos: Path, suffix: str) -> None:
    (photos / "05.png").write_bytes(b"words")
    (photos / "06.png").write_bytes(encoded(noise(32, 32))[:-200])
    os.mkfifo(photos / "07b.png")
    out, missing = photos.parent / f"results.{suffix}", photos / "nowhere.png"
    done = run("classify", photos, missing, "--out", out, models=models_dir)
    assert done.returncode == 1
    told = dict(line.rsplit(": ", 1) for line in done.stderr.splitlines()[:-1])
    assert told == {
        str(photos / "05.png"): "the data does not begin like an image",
        str(photos / "06.png"): "the image is damaged",
        str(photos / "07b.png"): "not a regular file",
        str(missing): "No such file or directory",
    }
    assert done.stderr.splitlines()[-1].endswith("4 skipped")
    assert len(out.read_text().splitlines()) == 68 + (suffix == "csv")


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_second_run_processes_the_rest(models_dir: Path, photos: Path, suffix: str) -> None:
    out = photos.parent / f"results.{suffix}"
    assert run("classify", photos, "--out", out, models=models_dir).returncode == 0
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:20]) + lines[20][:17])  # as a crash would leave it
    done = run("classify", photos, "--out", out, models=models_dir)
    assert done.returncode == 0
    before = 19 if suffix == "csv" else 20
    assert done.stderr.startswith(f"{70 - before} done at ")
    assert f"{before} done before" in done.stderr
    assert out.read_bytes() == whole
    assert run("classify", photos, "--out", out, models=models_dir).stderr == "0 done, 70 done before\n"
    assert out.read_bytes() == whole


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_any_file_name_survives_the_table(models_dir: Path, tmp_path: Path, suffix: str) -> None:
    names = [
        b'comma, "quote".png',
        b"line\nbreak.png",
        b"carriage\rreturn.png",
        b"latin-\xe9.png",
        "grün.png".encode(),
    ]
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(plain((1, 2, 3)))
    out = tmp_path / f"results.{suffix}"
    assert run("classify", tmp_path, "--out", out, models=models_dir).returncode == 0
    if suffix == "csv":
        found = [row["file"] for row in rows_of(out)]
    else:
        found = [json.loads(line)["file"] for line in out.read_text().splitlines()]
    assert {os.fsencode(Path(name).name) for name in found} == set(names)
    again = run("classify", tmp_path, "--out", out, models=models_dir)
    assert again.stderr == "0 done, 5 done before\n"


def test_a_row_cut_off_inside_a_quoted_name_is_dropped(models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(plain((1, 2, 3)))
    (tmp_path / "b\nb.png").write_bytes(plain((1, 2, 3)))
    out = tmp_path / "results.csv"
    run("classify", tmp_path, "--out", out, models=models_dir)
    whole = out.read_bytes()
    out.write_bytes(whole[: whole.rindex(b"\nb.png") + 3])
    assert run("classify", tmp_path, "--out", out, models=models_dir).stderr.startswith("1 done at ")
    assert out.read_bytes() == whole


def test_a_list_on_standard_input(models_dir: Path, photos: Path) -> None:
    listed = f"{photos / '03.png'}\n\n{photos / 'deep'}\n".encode()
    out = photos.parent / "results.csv"
    done = run("classify", "-", photos / "03.png", "--out", out, models=models_dir, stdin=listed)
    assert done.returncode == 0
    names = ["03.png", *(f"deep/{i}.JPG" for i in range(6))]
    assert [row["file"] for row in rows_of(out)] == [str(photos / name) for name in names]


def test_impossible_names_are_skipped(models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(plain((1, 2, 3)))
    long, out = "n" * 300 + ".png", tmp_path / "r.csv"
    listed = b"zero\0byte.png\n" + long.encode() + b"\n"
    done = run("classify", "-", "", tmp_path / "a.png", "--out", out, models=models_dir, stdin=listed)
    assert done.returncode == 1
    assert f"{long}: File name too long" in done.stderr
    assert "byte.png: embedded null byte" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("3 skipped")
    assert len(rows_of(out)) == 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("\n", "did not write"),
        ("a.png\n", "did not write"),
        ("x" * 200_000 + "\n", "not CSV"),
    ],
)
def test_a_table_with_foreign_rows_is_not_changed(
    models_dir: Path, tmp_path: Path, damage: str, told: str
) -> None:
    (tmp_path / "a.png").write_bytes(plain((1, 2, 3)))
    out = tmp_path / "results.csv"
    content = f"file,model,label,probability\n{damage}"
    out.write_text(content)
    done = run("classify", tmp_path / "a.png", "--out", out, models=models_dir)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert told in done.stderr
    assert out.read_text() == content


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.csv", "a line without an end"),
        ("notes.csv", 'size 5" a,b\n1,2\n3,4\n'),
        ("notes.jsonl", '{"precious": 1}'),
    ],
)
def test_a_foreign_file_is_not_changed(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match="did not write; choose another file"):
        open_table(tmp_path / name, "colours/1", 1)
    assert (tmp_path / name).read_text() == content


@pytest.mark.parametrize(
    ("name", "content"),
    [("r.csv", ""), ("r.csv", "file,mod"), ("r.jsonl", '{"fi'), ("r.jsonl", '{"file": "a')],
)
def test_a_truncated_first_row_is_written_again(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    table = open_table(tmp_path / name, "colours/1", 1)
    table.close()
    assert table.done == set()
    assert (tmp_path / name).read_bytes() == table._head()


class ShortWrites(io.BytesIO):
    """A file that writes at most seven bytes at a time."""

    def write(self, content: Any) -> int:
        return super().write(bytes(content)[:7])


def test_partial_writes_are_continued(tmp_path: Path) -> None:
    table = CsvTable(tmp_path / "r.csv", "colours/1", 1)
    table.close()
    table._stream = stream = ShortWrites()
    table.add([("a-long-name.png", [{"label": "red", "probability": 0.5}])])
    assert stream.getvalue() == b"a-long-name.png,colours/1,red,0.5\n"


def test_a_table_of_another_model_or_format_is_not_changed(tmp_path: Path) -> None:
    models = write_both(tmp_path / "models")
    (tmp_path / "a.png").write_bytes(plain((1, 2, 3)))
    out = tmp_path / "results.csv"
    assert run("classify", tmp_path / "a.png", "--out", out, models=models).returncode == 0
    before = out.read_bytes()
    other_columns = run("classify", tmp_path / "a.png", "--out", out, "--top-k", 2, models=models)
    write_classifier(models, 2)
    other_model = run("classify", tmp_path / "a.png", "--out", out, models=models)
    assert (other_columns.returncode, other_model.returncode) == (2, 2)
    assert "other columns" in other_columns.stderr
    assert "results of another model" in other_model.stderr
    assert out.read_bytes() == before
    (tmp_path / "notes.jsonl").write_text("no object\n")
    foreign = run("classify", tmp_path / "a.png", "--out", tmp_path / "notes.jsonl", models=models)
    assert (foreign.returncode, foreign.stderr.count("\n")) == (2, 1)
    assert (tmp_path / "notes.jsonl").read_text() == "no object\n"


# --- segment ---


def test_masks_are_those_of_the_contract(models_dir: Path, photos: Path) -> None:
    out = photos.parent / "masks"
    done = run("segment", photos / "deep", "--out", out, "--threshold", 0.3, models=models_dir)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == [f"{i}-mask.png" for i in range(6)]
    for i in range(6):
        small = Image.fromarray(noise(100 + i, 40, seed=i)).resize((80, 24), Image.Resampling.BILINEAR)
        road = small.getchannel(0).resize((100 + i, 40), Image.Resampling.BILINEAR)
        expected = np.where(np.asarray(road) >= 77, 255, 0)  # ceil(255 * 0.3)
        np.testing.assert_array_equal(np.asarray(Image.open(out / f"{i}-mask.png")), expected)


@pytest.mark.parametrize(("output", "mode"), [("heatmap", "L"), ("overlay", "RGB")])
def test_pictures_keep_the_folders_of_their_photos(
    models_dir: Path, photos: Path, output: str, mode: str
) -> None:
    (photos / "broken.png").write_bytes(b"words")
    out = photos / "results"  # inside the input folder, but not input
    for count in ("70 done at ", "0 done, 70 done before, 1 skipped"):
        done = run("segment", photos, "--out", out, "--output", output, models=models_dir)
        assert done.returncode == 1
        assert count in done.stderr
    assert len(list(out.rglob("*.png"))) == 70
    with Image.open(out / "deep" / f"3-{output}.png") as picture:
        assert (picture.mode, picture.size) == (mode, (103, 40))
    assert [path for path in out.rglob("*") if path.name.startswith(".")] == []


def test_pictures_beside_the_photos_are_not_input(models_dir: Path, photos: Path) -> None:
    for count, output in (("70 done at ", "mask"), ("70 done before", "mask"), ("70 done at ", "overlay")):
        done = run("segment", photos, "--out", photos, "--output", output, models=models_dir)
        assert done.returncode == 0, done.stderr
        assert count in done.stderr
    assert len([path for path in photos.rglob("*") if path.is_file()]) == 3 * 70


def test_a_second_picture_of_the_same_name_is_refused(models_dir: Path, tmp_path: Path) -> None:
    for name in ("a.png", "a.bmp"):
        (tmp_path / name).write_bytes(plain((200, 0, 0)))
    for _ in range(2):
        done = run("segment", tmp_path, "--out", tmp_path / "out", models=models_dir)
        assert done.returncode == 1
        assert f"{tmp_path / 'a.png'}: its picture would have the same name as that of" in done.stderr


def test_a_picture_with_too_long_a_name_is_skipped(models_dir: Path, tmp_path: Path) -> None:
    name = "n" * 251  # with .png as long as a name may be, with -mask.png longer
    for stem in ("a", name):
        (tmp_path / f"{stem}.png").write_bytes(plain((200, 0, 0)))
    done = run("segment", tmp_path, "--out", tmp_path / "out", models=models_dir)
    assert done.returncode == 1
    assert f"{name}.png: the name of its picture is too long" in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a-mask.png"]


# --- refusals and interruptions ---


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["classify", "x.png"], 2, "--out"),
        (["classify", "x.png", "--out", "results.txt"], 2, ".csv"),
        (["classify", "x.png", "--out", "r.csv", "--top-k", "0"], 2, "0 is less than 1"),
        (
            ["classify", "x.png", "--out", "r.csv", "--model", "nobody"],
            2,
            "are tiny-colours, tiny-road",
        ),
        (["classify", "x.png", "--out", "r.csv", "--top", "3"], 2, "unrecognized arguments: --top 3"),
        (["classify", "x.png", "--out", "r.csv", "--model", "tiny-road"], 2, "it does segmentation"),
        (["classify", "x.png", "--out", "r.csv", "--threads", "-1"], 2, "threads is '-1'"),
        (["segment", "--out", "masks"], 2, "PATH"),
        (["segment", "x.png", "--out", "masks", "--threshold", "1.5"], 2, "1.5 is not between 0 and 1"),
        (["segment", "x.png", "--out", "masks", "--output", "video"], 2, "video"),
        (["segment", "x.png", "--out", "masks", "--precision", "fp16"], 1, "no fp16 file"),
        (["segment", "x.png", "--out", "masks", "--port", "1"], 2, "--port"),
        (["segment", "x.png", "--out", "/proc/masks"], 1, "/proc/masks"),
    ],
)
def test_a_bad_argument_is_a_one_line_error(
    models_dir: Path, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    done = run(*arguments, models=models_dir, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_several_models_need_a_name(tmp_path: Path) -> None:
    models = write_both(tmp_path / "models")
    write_classifier(models, name="second-colours")
    (tmp_path / "a.png").write_bytes(plain((1, 2, 3)))
    out = tmp_path / "r.csv"
    refused = run("classify", tmp_path / "a.png", "--out", out, models=models)
    assert refused.returncode == 2
    assert "second-colours, tiny-colours" in refused.stderr
    taken = run("classify", tmp_path / "a.png", "--out", out, "--model", "second-colours", models=models)
    assert taken.returncode == 0
    assert rows_of(out)[0]["model"] == "second-colours/1"
    default = run("classify", tmp_path / "a.png", "--out", out, models=models, default_classifier="nobody")
    assert (default.returncode, "model is 'nobody'" in default.stderr) == (2, True)


def test_an_interrupted_run_leaves_whole_rows_and_continues(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_classifier(models, rounds=200)  # slow enough to be interrupted
    folder, out = tmp_path / "photos", tmp_path / "results.csv"
    folder.mkdir()
    for i in range(400):
        (folder / f"{i:03}.png").write_bytes(plain((i % 256, 9, 9)))
    arguments = command("classify", folder, "--out", out, "--max-batch", 2, models=models)
    with subprocess.Popen(arguments, cwd=REPOSITORY, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") > 4, 90)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 130
    assert b"run the same command again to continue" in told
    assert b"Traceback" not in told
    rows = rows_of(out)
    assert 0 < len(rows) < 400
    done = run("classify", folder, "--out", out, "--max-batch-s", 60, models=models)  # whole batches again
    assert done.returncode == 0
    assert [row["file"] for row in rows_of(out)] == [str(folder / f"{i:03}.png") for i in range(400)]


def test_each_command_has_its_own_help(models_dir: Path) -> None:
    for command, flag in (("classify", "--top-k"), ("segment", "--threshold")):
        page = run(command, "--help", models=models_dir).stdout
        assert page.startswith(f"usage: quatserve {command} ")
        assert flag in page
        assert "QUATSERVE_THREADS" in page
        assert "--port" not in page


def test_the_progress_bar_shows_speed_and_time_left(models_dir: Path, photos: Path) -> None:
    """On a terminal; elsewhere a bar would only fill a log."""
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, 100))
    arguments = command("classify", photos, "--out", photos.parent / "r.csv", models=models_dir)
    process = subprocess.Popen(arguments, cwd=REPOSITORY, stderr=writer)
    os.close(writer)
    shown = b""
    try:
        while chunk := os.read(reader, 4096):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    finally:
        process.wait(30)
        os.close(reader)
    assert process.returncode == 0
    assert b"70/70" in shown
    assert re.search(rb"\[\d\d:\d\d<\d\d:\d\d, +[\d.]+ images/s\]", shown)
