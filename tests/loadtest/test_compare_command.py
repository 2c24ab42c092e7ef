"""Comparing from the command line: what is asked for is what is run, and all of it is written."""

from pathlib import Path

import pytest

from loadtest.comparison.results import decode
from tests.loadtest.test_command import loadtest


@pytest.mark.llama
def test_a_system_that_is_not_built_is_told_and_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing is built"))
    out = tmp_path / "new"
    done = loadtest("compare", "--systems=llama-server", "--workloads=steady-1", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "llama-server: there is no" in done.stderr
    results = decode((out / "report.json").read_bytes())
    assert "python -m loadtest peers" in results.systems[0].error
    assert [turn.is_absent for turn in results.workloads[0].turns] == [True]


@pytest.mark.llama
@pytest.mark.soak
def test_a_report_has_the_workloads_and_systems_that_were_asked_for(tmp_path: Path) -> None:
    done = loadtest(
        *("compare", "--systems=ours", "--workloads=steady-1", "--rounds=1", "--quick"),
        f"--out={tmp_path / 'new'}",
    )
    assert done.returncode == 0, done.stderr
    results = decode((tmp_path / "new" / "report.json").read_bytes())
    assert [system.name for system in results.systems] == ["ours"]
    [workload] = results.workloads
    assert [(turn.system, turn.error) for turn in workload.turns] == [("ours", "")]
    assert workload.median("ours", "n_generated") == 32
    assert results.verdicts == [], "no bar is about this system alone"
    assert results.systems[0].commands[0][-1].endswith(".gguf")


def test_to_compare_with_a_system_that_nobody_knows_is_a_wrong_use() -> None:
    done = loadtest("compare", "--systems=theirs")
    assert done.returncode == 64
    assert "llama-server" in done.stderr


def test_a_workload_of_another_name_is_a_wrong_use() -> None:
    done = loadtest("compare", "--workloads=chat,x")
    assert done.returncode == 64
    assert "shared-prefix" in done.stderr
