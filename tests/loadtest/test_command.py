"""The command: what it prints, and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def loadtest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtest", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )


def test_json_holds_the_load_and_its_figures() -> None:
    done = loadtest("run", "--engine-free", "--streams=2", "--max-tokens=8", "--rounds=1", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["load"]["n_streams"] == 2
    assert printed["n_generated"] == 16
    assert printed["median"]["tokens_per_s"] > 0


def test_a_wrong_use_exits_with_the_status_for_it() -> None:
    done = loadtest("run", "--streams=0", "--engine-free")
    assert done.returncode == 64
    assert "streams" in done.stderr


def test_to_name_no_daemon_is_a_wrong_use() -> None:
    assert loadtest("run").returncode == 64


def test_nobody_listening_is_one_line_and_status_1(tmp_path: Path) -> None:
    done = loadtest("run", f"--socket={tmp_path / 'nobody'}")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_load_that_takes_too_long_is_given_up() -> None:
    done = loadtest("run", "--engine-free", "--max-tokens=1000000", "--time-limit=1")
    assert done.returncode == 1
    assert "time limit" in done.stderr
