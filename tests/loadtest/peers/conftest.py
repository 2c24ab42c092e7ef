"""Peers as programs in a folder, and where they write what they were asked."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.loadtest.peers import recorded_servers

Asked = list[tuple[str, dict[str, object]]]


on_both_backends = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the one that comparisons run on


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a program that takes llama-server's options."""
    path = tmp_path / "llama-server"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {recorded_servers.__file__} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Asked]:
    """Return how to look at what servers were asked so far."""
    path = tmp_path / "asked"
    monkeypatch.setenv("ASKED", str(path))
    return lambda: [(where, body) for where, body in map(json.loads, path.read_text().splitlines())]


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a pipe that is written to when a client has left its request."""
    path = tmp_path / "left"
    os.mkfifo(path)
    monkeypatch.setenv("LEFT", str(path))
    return path
