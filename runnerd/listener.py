"""A listening unix socket at a path, taken from nobody who is alive.

A lock on `<path>.lock`, held for life, decides between instances of runnerd. Whoever holds it
may call a socket file stale: asking the file alone cannot tell a dead instance from one between
bind and listen, and two starts over one stale file would remove each other's socket. The probe
that follows is for listeners who do not know of the lock.

What is removed at the end is checked to be ours: the same inode as we made. The open descriptors
keep those numbers from being given to other files in the meantime.
"""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from runnerd.errors import ConfigError

MAX_PATH_BYTES = 107  # sun_path of unix(7) holds 108, the last one a NUL
BACKLOG = 128  # connections that wait while the event loop is busy

Inode = tuple[int, int]


class AddressInUse(ConfigError):
    """Somebody else serves this path."""


class BoundSocket:
    """A non-blocking socket that listens at `path`; `close` takes it and its file away."""

    def __init__(self, sock: socket.socket, path: Path, lock_fd: int) -> None:
        self.socket = sock
        self.path = path
        self._inode = _inode_at(path)
        self._lock_fd = lock_fd

    def still_ours(self) -> bool:
        """Whether clients that connect to the path still reach this socket."""
        inode = _inode_at(self.path)
        return inode is not None and inode == self._inode and self.socket.fileno() >= 0

    def close(self) -> None:
        """Stop listening; remove the files that are still ours. May be called again."""
        if self.socket.fileno() < 0:
            return
        if self.still_ours():
            self.path.unlink(missing_ok=True)
        self.socket.close()
        _unlock(self._lock_fd, _lock_path(self.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def bind_unix(path: str | Path, mode: int = 0o600, backlog: int = BACKLOG) -> BoundSocket:
    """Listen at the path, with a file that is never more open than `mode`.

    A relative path means the same file as long as the working directory stays the same. The
    umask is changed for a moment: not to be called while other threads create files.

    Raises:
        AddressInUse: another runnerd, or another living listener, has the path.
        ConfigError: the path cannot be used, or something that is not a socket is there.
    """
    path = _checked(path)
    lock_fd = _lock(path)
    try:
        _clear(path)
        return BoundSocket(_listen(path, mode, backlog), path, lock_fd)
    except BaseException:
        _unlock(lock_fd, _lock_path(path))
        raise


def _checked(path: str | Path) -> Path:
    text = str(path)
    if text in {"", "."}:  # what Path("") says
        raise ConfigError("the socket's path is empty")
    if "\0" in text:
        raise ConfigError(f"the socket's path {text!r} has a NUL in it")
    n_bytes = len(os.fsencode(text))
    if n_bytes > MAX_PATH_BYTES:
        raise ConfigError(
            f"the socket's path has {n_bytes} bytes, a unix socket's has at most"
            f" {MAX_PATH_BYTES}: {text}"
        )
    folder = Path(path).parent
    with _refusing(f"cannot look for the socket's directory {folder}"):
        if not folder.is_dir():
            raise ConfigError(f"the directory {folder} of the socket {text} does not exist")
    return Path(path)


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _lock(path: Path) -> int:
    """Return a descriptor that holds the lock of the file that is at the lock's path."""
    lock_path = _lock_path(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with _refusing(f"cannot open {lock_path}"):
            fd = os.open(lock_path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{lock_path} is not a regular file")
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AddressInUse(f"another runnerd serves {path}") from None
        except BaseException:
            os.close(fd)
            raise
        if _inode_of(os.fstat(fd)) == _inode_at(lock_path):
            return fd
        # Its holder has removed it and gone, between our open and our lock.
        os.close(fd)


def _unlock(fd: int, lock_path: Path) -> None:
    # Removed while the lock is held: whoever has it open gets the lock, but of no path's file.
    if _inode_of(os.fstat(fd)) == _inode_at(lock_path):
        lock_path.unlink(missing_ok=True)
    os.close(fd)


def _clear(path: Path) -> None:
    """Remove a stale socket file; refuse whatever else is there."""
    with _refusing(f"cannot look at {path}"):
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise ConfigError(f"{path} exists and is not a socket; it is left as it is")
        if _is_alive(path):
            raise AddressInUse(f"somebody who is not this runnerd listens at {path}")
        path.unlink(missing_ok=True)


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        answer = probe.connect_ex(os.fspath(path))
    if answer in {errno.ECONNREFUSED, errno.ENOENT}:
        return False
    # EAGAIN: its backlog is full. EPROTOTYPE: it takes datagrams, or packets.
    if answer in {0, errno.EAGAIN, errno.EPROTOTYPE}:
        return True
    raise OSError(answer, os.strerror(answer))


def _listen(path: Path, mode: int, backlog: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        umask = os.umask(0o777 & ~mode)
        try:
            with _refusing(f"cannot bind {path}"):
                sock.bind(os.fspath(path))
        finally:
            os.umask(umask)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def _inode_of(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def _inode_at(path: Path) -> Inode | None:
    try:
        return _inode_of(path.lstat())
    except OSError:
        return None


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Turn an OSError into a ConfigError that says what could not be done, and why."""
    try:
        yield
    except OSError as err:
        raise ConfigError(f"{what}: {err.strerror}") from err
