"""Who is at the other end of a unix socket, and whether they may come in.

All ids are as our own user namespace sees them. What it has no number for is shown as the
overflow id, which stands for everybody else and so for nobody: it opens no door.

Source: unix(7), user_namespaces(7); SO_PEERGROUPS in net/core/sock.c of Linux.
"""

import ctypes
import errno
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Self

ROOT = 0
OVERFLOW_ID = 65534  # unless /proc/sys/kernel says otherwise
N_IDS = 2**32 - 1  # of a namespace that knows everybody, as the first one does
SO_PEERGROUPS = 59  # Python has no name for it, and takes at most 256 groups
FIRST_N_GROUPS = 64  # to make room for; for more we are asked again

_credentials = Struct("=iII")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that has connected, as the kernel saw it at that moment (SO_PEERCRED).

    `gids` are its group and its supplementary groups. Ids that our user namespace does not know
    are all the overflow id, 65534, and say nothing.
    """

    pid: int
    uid: int
    gids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Access:
    """Whom to let in, besides root, our own user, and the group of the socket's file.

    That group counts where the file's mode lets it write, as the mode of a socket unit does.
    """

    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Ids:
    """Our own user, and the ids that stand for whom our namespace does not know, if for anybody."""

    own_uid: int
    overflow_uid: int | None
    overflow_gid: int | None

    @classmethod
    def of_this_process(cls) -> Self:
        """Return those of now: a daemon keeps its user, and its namespace."""
        return cls(os.geteuid(), _overflow_id("uid"), _overflow_id("gid"))


def peer_of(sock: socket.socket) -> Peer:
    """Return who has connected to a unix socket.

    Raises:
        OSError: the socket has no peer that the kernel could tell of.
    """
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _credentials.size)
    pid, uid, gid = _credentials.unpack(data)
    return Peer(pid, uid, _supplementary_gids(sock) | {gid})


class SocketFile:
    """The file at a listening socket's path, by which clients find it.

    Its mode and its group may change. A file that somebody else has put there since it was first
    seen counts for nothing: who may write to the folder must not say who may come in.
    """

    def __init__(self, listening: socket.socket) -> None:
        path = listening.getsockname()
        # bytes: an abstract name, which no mode guards
        self._path = path if isinstance(path, str) else ""
        self._inode = self._seen()[:2]

    @property
    def gid(self) -> int | None:
        """The group that may write to it; None: there is none."""
        device, number, gid = self._seen()
        return gid if (device, number) == self._inode else None

    def _seen(self) -> tuple[int, int, int | None]:
        try:
            status = os.lstat(self._path)
        except OSError:
            return 0, 0, None  # it was deleted: who is still in its queue comes in by other rights
        is_for_group = stat.S_ISSOCK(status.st_mode) and status.st_mode & stat.S_IWGRP
        return status.st_dev, status.st_ino, status.st_gid if is_for_group else None


def is_allowed(peer: Peer, access: Access, socket_gid: int | None, ids: Ids) -> bool:
    """Whether a peer may come in through a socket whose file lets `socket_gid` write."""
    if peer.uid == ROOT:
        return True
    if peer.uid != ids.overflow_uid and (peer.uid == ids.own_uid or peer.uid in access.uids):
        return True
    gids = access.gids if socket_gid is None else access.gids | {socket_gid}
    return bool((gids & peer.gids) - {ids.overflow_gid})


def _supplementary_gids(sock: socket.socket) -> frozenset[int]:
    n_groups = FIRST_N_GROUPS
    while True:
        room = (ctypes.c_uint32 * n_groups)()
        n_bytes = ctypes.c_uint32(ctypes.sizeof(room))
        fd, level = sock.fileno(), socket.SOL_SOCKET
        failed = _libc.getsockopt(fd, level, SO_PEERGROUPS, room, ctypes.byref(n_bytes))
        n_groups = n_bytes.value // ctypes.sizeof(ctypes.c_uint32)  # what there is, either way
        if not failed:
            return frozenset(room[:n_groups])
        code = ctypes.get_errno()
        if code != errno.ERANGE:
            raise OSError(code, os.strerror(code))


def _overflow_id(kind: str) -> int | None:
    """Return the id of all strangers; None where the namespace has a number for everybody."""
    with suppress(OSError, ValueError):  # no /proc, or a map of several ranges, not of all
        first, _, n_ids = Path(f"/proc/self/{kind}_map").read_text().split()
        if (int(first), int(n_ids)) == (0, N_IDS):
            return None
    with suppress(OSError, ValueError):  # a hardened unit sees no /proc/sys
        return int(Path(f"/proc/sys/kernel/overflow{kind}").read_text())
    return OVERFLOW_ID
