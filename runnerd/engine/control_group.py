"""What the control groups of a process leave it of memory: a container's limits, as Linux says.

A limit holds for all that is in a group and in those below it, so every ancestor counts. What a
group has cached of files is given back where memory is short, and so is no use of it.

Source: Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.high, memory.current,
memory.stat) and cgroup-v1/memory.rst (memory.limit_in_bytes, memory.usage_in_bytes) of Linux.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

UNLIMITED_V1 = 1 << 62  # no limit is written as the largest multiple of a page below 2^63


def headroom_of_groups(proc: Path = Path("/proc/self")) -> Iterator[int]:
    """Yield what each limit of each group leaves, below zero where it is exceeded.

    `proc` has the process's `cgroup` and `mountinfo`. What cannot be read limits nothing.
    """
    for group, top, is_v2 in _groups(proc):
        limits, usage = _NAMES[is_v2]
        for each in (group, *group.parents):
            used = _number(each / usage)
            if used is not None:
                used -= _reclaimable(each, is_v2=is_v2)
                for limit in (_number(each / name) for name in limits):
                    if limit is not None and limit < UNLIMITED_V1:
                        yield limit - used
            if each == top:
                break


_NAMES = {
    True: (("memory.max", "memory.high"), "memory.current"),
    False: (("memory.limit_in_bytes",), "memory.usage_in_bytes"),
}


def _groups(proc: Path) -> Iterator[tuple[Path, Path, bool]]:
    """Yield the folder of each group that counts memory, the top of its tree, and its version."""
    mounts = {is_v2: (root, top) for root, top, is_v2 in _mounts(proc)}
    for line in _lines(proc / "cgroup"):
        number, controllers, path = line.split(":", 2)
        is_v2 = number == "0" and not controllers
        if (is_v2 or "memory" in controllers.split(",")) and is_v2 in mounts:
            root, top = mounts[is_v2]
            # Of a container only its own part of the tree is mounted, under another name.
            within = path.removeprefix(root.rstrip("/")) if path.startswith(root) else ""
            group = top / within.lstrip("/")
            yield (group if group.is_dir() else top), top, is_v2


def _mounts(proc: Path) -> Iterator[tuple[str, Path, bool]]:
    """Yield what of a tree is mounted, where, and its version."""
    for line in _lines(proc / "mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if kind[0] == "cgroup2" or (kind[0] == "cgroup" and "memory" in kind[-1].split(",")):
            yield fields[3], Path(fields[4]), kind[0] == "cgroup2"


def _reclaimable(group: Path, *, is_v2: bool) -> int:
    """Return how much of a group's memory are pages of files."""
    prefix = "" if is_v2 else "total_"
    names = {f"{prefix}inactive_file", f"{prefix}active_file"}
    facts = (line.split(" ") for line in _lines(group / "memory.stat"))
    return sum(int(fact[1]) for fact in facts if fact[0] in names)


def _number(path: Path) -> int | None:
    """Return the number in a file; None for "max", or without the file."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(errors="replace").splitlines()
    return []
