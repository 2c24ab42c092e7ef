"""A daemon that was started by a parent ends with it, however the parent comes to its end.

The parent hands down a descriptor of its own process. It becomes readable when that process has
ended, with all of its threads, whether or not anybody reaps it. A signal at the parent's death
tells less: it comes at the end of the thread that has started us, and not at all if that was
earlier. It is only used to wake a daemon that is stopped, which could not look at anything.

Source: pidfd_open(2), PR_SET_PDEATHSIG of prctl(2).
"""

import ctypes
import os
import signal

import anyio

PR_SET_PDEATHSIG = 1


def wake_at_parents_death() -> None:
    """Ask for SIGCONT when the thread that has started us ends: it does nothing to who runs."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT))


async def until_parent_ends(fd: int) -> None:
    """Wait for the end of the process that a descriptor stands for; closes it."""
    try:
        await anyio.wait_readable(fd)
    finally:
        os.close(fd)
