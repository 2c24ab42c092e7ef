"""A disk that takes seconds for each write, as the C library's write(2) with a delay before it."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

# Only where the file `HANGS` is there, and only for regular files: a poll finds those writable.
SOURCE = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t write(int fd, const void *data, size_t n_bytes) {
    struct stat found;
    const char *hangs = getenv("HANGS");
    if (hangs && !fstat(fd, &found) && S_ISREG(found.st_mode))
        for (int i = 0; i < 1000 && !access(hangs, F_OK); i++) usleep(10000);
    return syscall(SYS_write, fd, data, n_bytes);
}
"""


@dataclass(frozen=True, slots=True)
class HungDisk:
    """A disk under everything that a process writes that is started `within` it."""

    library: Path
    switch: Path

    @classmethod
    def made_in(cls, folder: Path) -> Self:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        library = folder / "hung_disk.so"
        command = [compiler, "-shared", "-fPIC", "-o", str(library), "-x", "c", "-"]
        subprocess.run(command, input=SOURCE, text=True, timeout=60, check=True)
        return cls(library, folder / "hangs")

    @property
    def within(self) -> tuple[str, ...]:
        """What a command is to be started with."""
        return ("env", f"LD_PRELOAD={self.library}", f"HANGS={self.switch}")

    def hang(self) -> None:
        self.switch.touch()

    def go_on(self) -> None:
        self.switch.unlink()
