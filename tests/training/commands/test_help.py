"""Help that teaches, at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quatserve.training.commands import COMMANDS
from quatserve.training.commands.main import argument_parser, main

ROOT = Path(__file__).parents[3]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main([*arguments, "--help"])
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    for command in COMMANDS:
        assert f"    {command.NAME}" in text
    assert "quatserve fit cifar10-quaternion --data data --out runs/mine" in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.NAME)
def test_every_command_shows_examples_that_parse(command, capsys) -> None:  # type: ignore[no-untyped-def]
    assert command.EXAMPLES in shown(capsys, command.NAME)
    lines = [line.partition("quatserve ")[2] for line in command.EXAMPLES.splitlines()[1:]]
    assert any(line.startswith(command.NAME) for line in lines)
    for line in lines:
        argument_parser().parse_args(line.split())


def test_help_does_not_wait_for_torch() -> None:
    script = (
        "import sys\n"
        "from quatserve.training.commands.main import argument_parser, main\n"
        "try: main(['fit', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.splitlines()[-1] == "False False"


def test_evaluate_admits_that_imported_weights_are_measured_on_all_frames(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(shown(capsys, "evaluate").split())
    assert "default: what was not trained on; for imported weights, where that is unknown, all frames" in text
