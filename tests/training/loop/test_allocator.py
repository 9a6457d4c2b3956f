"""The command starts itself anew, once, with settings that glibc reads at the start of a process."""

import os
import sys
from typing import Any

import pytest

from quatserve.training.loop.allocator import SETTINGS, keep_memory


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *given: calls.append(given))
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(sys, "argv", ["-m", "fit", "recipe"])
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return calls


def test_the_command_starts_anew_with_the_settings(started: list[Any]) -> None:
    keep_memory()
    [(program, arguments, environment)] = started
    assert program == sys.executable
    assert arguments == [sys.executable, "-m", "quatserve", "fit", "recipe"]
    assert environment.items() >= SETTINGS.items()


def test_only_once(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")  # a person's own choice counts as well
    keep_memory()
    assert started == []


def test_only_where_glibc_reads_them(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    keep_memory()
    assert started == []
