"""How many processes of a process's control group the kernel has killed for want of memory.

It counts for the whole group, so an increase is strong evidence of a process that was killed
there, and no proof.

Source: Documentation/admin-guide/cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst
(memory.oom_control) of Linux.
"""

from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")


class OomKills:
    """The count of the group that a process is in, and how much it has grown since."""

    def __init__(self, pid: int, proc: Path = Path("/proc"), mount: Path = MOUNT) -> None:
        self._files = _counters(proc / str(pid) / "cgroup", mount)
        self._before = self._count()

    @property
    def n_since(self) -> int | None:
        """How many there were since this was made; None: nobody counts them for us."""
        now = self._count()
        return None if now is None or self._before is None else now - self._before

    def _count(self) -> int | None:
        counts: list[int] = []
        for path in self._files:
            with suppress(OSError, ValueError):
                facts = (line.partition(" ") for line in path.read_text().splitlines())
                counts += [int(count) for name, _, count in facts if name == "oom_kill"]
        return sum(counts) if counts else None


def _counters(cgroup: Path, mount: Path) -> list[Path]:
    """Return the files that may have the count: of version 2, and of version 1."""
    lines: list[str] = []
    with suppress(OSError):
        lines = cgroup.read_text().splitlines()
    found: list[Path] = []
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            found.append(mount / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(mount / "memory" / group.lstrip("/") / "memory.oom_control")
    return found
