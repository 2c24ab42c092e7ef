"""Who is at the other end of a unix socket, and whether they may come in."""

from dataclasses import dataclass


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
