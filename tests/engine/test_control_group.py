"""What control groups leave of memory, read from files as Linux lays them out."""

from pathlib import Path

import pytest

from runnerd.engine.control_group import headroom_of_groups
from runnerd.engine.memory import available_bytes


class Machine:
    """A tree of groups, and a process in it."""

    def __init__(self, folder: Path, *, is_v2: bool = True, root: str = "/") -> None:
        self.top = folder / "tree"
        self.proc = folder / "proc"
        self.is_v2 = is_v2
        for each in (self.top, self.proc):
            each.mkdir()
        kind, options = ("cgroup2", "rw") if is_v2 else ("cgroup", "rw,memory")
        line = f"31 23 0:28 {root} {self.top} rw,relatime shared:9 - {kind} cgroup {options}\n"
        (self.proc / "mountinfo").write_text(line)

    def enter(self, path: str) -> None:
        number = "0::" if self.is_v2 else "4:memory:"
        (self.proc / "cgroup").write_text(f"1:cpu:/else\n{number}{path}\n")

    def group(self, path: str, cached: int = 0, **files: int | str) -> None:
        folder = self.top / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / f"memory.{name}").write_text(f"{value}\n")
        prefix = "" if self.is_v2 else "total_"
        (folder / "memory.stat").write_text(f"anon 7\n{prefix}inactive_file {cached}\n")

    def headroom(self) -> list[int]:
        return sorted(headroom_of_groups(self.proc))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_limit_leaves_what_is_not_used(machine: Machine) -> None:
    machine.group("a", max=1000, high="max", current=400)
    machine.enter("/a")
    assert machine.headroom() == [600]


def test_what_is_cached_of_files_is_given_back(machine: Machine) -> None:
    machine.group("a", max=1000, current=900, cached=500)
    machine.enter("/a")
    assert machine.headroom() == [600]


def test_every_group_above_counts(machine: Machine) -> None:
    machine.group("a", max=500, current=450)
    machine.group("a/b", high=800, current=300)
    machine.group("a/b/c", max="max", high="max", current=100)
    machine.enter("/a/b/c")
    assert machine.headroom() == [50, 500]


def test_a_limit_that_is_exceeded_leaves_less_than_nothing(machine: Machine) -> None:
    machine.group("a", high=100, current=150)
    machine.enter("/a")
    assert machine.headroom() == [-50]


def test_a_container_sees_its_own_part_of_the_tree(tmp_path: Path) -> None:
    machine = Machine(tmp_path, root="/docker/x")
    machine.group("", max=1000, current=100)
    machine.enter("/docker/x")
    assert machine.headroom() == [900]


def test_groups_of_version_1_count_and_their_no_limit_does_not(tmp_path: Path) -> None:
    machine = Machine(tmp_path, is_v2=False)
    machine.group("", limit_in_bytes=9223372036854771712, usage_in_bytes=5)
    machine.group("a", limit_in_bytes=1000, usage_in_bytes=700, cached=200)
    machine.enter("/a")
    assert machine.headroom() == [500]


def test_what_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    assert list(headroom_of_groups(tmp_path / "nowhere")) == []


def test_a_process_without_limits_has_what_the_machine_has() -> None:
    assert available_bytes() > 0
