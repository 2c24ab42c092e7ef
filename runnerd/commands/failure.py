"""Expected failures of a command: one line on stderr, and an exit status out of sysexits.h."""

import errno
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from runnerd.client import CannotSend, Client, ClientError, RequestFailed, connect
from runnerd.errors import ConfigError, LoadError
from runnerd.launcher import ChildDied

REQUEST_FAILED = 1
USAGE = 64
BAD_INPUT = 65
NO_INPUT = 66
UNAVAILABLE = 69
INTERNAL = 70
IO_ERROR = 74
# What no write fails with: the system had no room for something else.
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
STDOUT_CLOSED = 141  # what a shell shows for a process that SIGPIPE has ended


class CommandFailed(Exception):
    """The command cannot go on; an empty message is not shown."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def translated() -> Iterator[None]:
    """Turn what client and launcher raise, or writing to stdout, into `CommandFailed`."""
    try:
        yield
    except (RequestFailed, CannotSend) as err:
        raise CommandFailed(str(err), REQUEST_FAILED) from err
    except ChildDied as err:
        code = err.returncode if err.returncode > 0 else INTERNAL
        raise CommandFailed(str(err), code) from err
    except ClientError as err:
        raise CommandFailed(str(err), UNAVAILABLE) from err
    except BrokenPipeError as err:
        # Whoever read us has had enough, as `head` has. What is still buffered goes nowhere,
        # or the interpreter would complain about it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CommandFailed("", STDOUT_CLOSED) from err
    except OSError as err:
        if err.errno in NO_ROOM:
            raise CommandFailed(f"cannot go on: {err.strerror}", UNAVAILABLE) from err
        if err.filename is not None:  # stdout has none that we know
            raise
        raise CommandFailed(f"cannot write: {err.strerror}", IO_ERROR) from err


@contextmanager
def telling_the_service(address: str) -> Iterator[None]:
    """Tell the service manager at an address, "" for none, what keeps the daemon from starting."""
    try:
        yield
    except (CommandFailed, ConfigError, LoadError) as err:
        if address:
            from runnerd.systemd.notifier import Notifier  # brings the log: slow

            Notifier(address).failed(str(err), err)
        raise


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Client]:
    """Connect to the daemon at a path, or say that there is none."""
    async with connect(path) as client:
        yield client
