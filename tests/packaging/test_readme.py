"""The README's commands are run as they stand.

Every block of commands opens with "```sh WORD". The word is `run`, and the block is run here, or the reason
why it is not. A block opened with "```json output" right behind one shows what its last command prints.
`localhost:8000` stands for a service on models/ that is started for the purpose.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.running_service import running

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
REASONS = {
    "serves": "does not end",
    "suite": "would run itself",
    "docker": "needs an engine",
    "download": "needs the network, or a data set",
    "hours": "takes too long",
}
SERVICE = "localhost:8000"
BLOCK = re.compile(
    r"^```sh(?: (?P<word>\S+))?\n(?P<body>.*?)^```\n(?:\n*```json output\n(?P<output>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    word: str
    body: str
    output: str | None


BLOCKS = [Block(match["word"] or "", match["body"], match["output"]) for match in BLOCK.finditer(README)]


def agrees(shown: Any, got: Any) -> bool:
    """Equal but for digits: scores to the second decimal, times not at all."""
    if isinstance(shown, dict):
        same = isinstance(got, dict) and shown.keys() == got.keys()
        return same and all(key.endswith("_ms") or agrees(shown[key], got[key]) for key in shown)
    if isinstance(shown, list):
        return isinstance(got, list) and len(shown) == len(got) and all(map(agrees, shown, got))
    if isinstance(shown, float):
        return isinstance(got, float) and abs(shown - got) < 0.01
    return bool(shown == got)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running([sys.executable, "-m", "quatserve", "serve"], cwd=ROOT) as service:
        yield f"localhost:{service.port}"


def run(script: str, cwd: Path, newcomer: dict[str, str]) -> str:
    """As a newcomer would type it: `python` is the environment that the README has them activate."""
    for entry in ROOT.iterdir():  # looks like the repository; what a command writes stays out of the real one
        (cwd / entry.name).symlink_to(entry)
    done = subprocess.run(["sh", "-euc", script], cwd=cwd, env=newcomer, capture_output=True, text=True)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_every_block_is_run_or_says_why_not() -> None:
    assert BLOCKS
    assert {block.word for block in BLOCKS} <= {"run", *REASONS}
    assert len(re.findall(r"^```(sh|bash|shell|console)\b", README, re.MULTILINE)) == len(BLOCKS)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.word == "run"])
def test_a_block_does_what_it_shows(
    block: Block, request: pytest.FixtureRequest, tmp_path: Path, newcomer: dict[str, str]
) -> None:
    script = block.body
    if SERVICE in script:
        script = script.replace(SERVICE, request.getfixturevalue("address"))
    printed = run(script, tmp_path, newcomer)
    assert block.output is None or agrees(json.loads(block.output), json.loads(printed.splitlines()[-1]))


def test_every_curl_fails_where_the_service_does() -> None:
    commands = re.findall(r"^curl .*", README, re.MULTILINE)
    assert commands
    assert [command for command in commands if not command.startswith("curl -sf")] == []


def test_the_curl_of_a_machine_without_one(address: str, stand_ins: Path, tmp_path: Path) -> None:
    """What it prints is what curl would: the answer, or nothing."""
    cat, out, program = ROOT / "service" / "samples" / "cat.png", tmp_path / "a", str(stand_ins / "curl")
    command = [program, "-sfF", f"file=@{cat}", f"{address}/classify?top_k=1", "-o", str(out)]
    subprocess.run(command, check=True)
    assert json.loads(out.read_text())["results"][0]["predictions"][0]["label"] == "cat"
    failed = subprocess.run([program, "-sf", f"{address}/nowhere"], capture_output=True)
    assert (failed.returncode, failed.stdout) == (22, b"")


def test_other_output_is_noticed() -> None:
    shown = {"label": "cat", "probability": 0.91, "timings_ms": {"queue": 1}}
    assert agrees(shown, {"label": "cat", "probability": 0.9142, "timings_ms": {"queue": 7}})
    assert not agrees(shown, {"label": "dog", "probability": 0.91, "timings_ms": {}})
    assert not agrees(shown, {"label": "cat", "probability": 0.81, "timings_ms": {}})
    assert not agrees([shown], [])
