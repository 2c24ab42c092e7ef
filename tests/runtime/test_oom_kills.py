import os
from pathlib import Path

import pytest

from runnerd.oom_kills import OomKills


@pytest.fixture(params=["v1", "v2"])
def counter(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    group, name = tmp_path / "mount/apps/runner", "memory.events"
    line = "0::/apps/runner\n"
    if request.param == "v1":
        group, name = tmp_path / "mount/memory/apps/runner", "memory.oom_control"
        line = "5:cpu,cpuacct:/\n4:memory:/apps/runner\n0::/\n"
    group.mkdir(parents=True)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(line)
    return group / name


def test_kills_are_counted_from_the_start_on(counter: Path, tmp_path: Path) -> None:
    counter.write_text("oom 5\noom_kill 2\n")
    kills = OomKills(7, tmp_path, tmp_path / "mount")
    assert kills.n_since == 0
    counter.write_text("oom 7\noom_kill 3\noom_group_kill 0\n")
    assert kills.n_since == 1


def test_what_cannot_be_read_is_not_known(counter: Path, tmp_path: Path) -> None:
    assert OomKills(7, tmp_path, tmp_path / "mount").n_since is None
    assert OomKills(8, tmp_path, tmp_path / "mount").n_since is None
    counter.write_text("nonsense\n\noom_kill many")
    assert OomKills(7, tmp_path, tmp_path / "mount").n_since is None


def test_a_living_process_can_be_asked_about() -> None:
    assert OomKills(os.getpid()).n_since in (0, None)
