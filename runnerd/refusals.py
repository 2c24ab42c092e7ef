"""Connections that are turned away: each is told why, and let go at once.

A socket that was just accepted takes a short message without waiting, and its client can still
read it after our close. So whoever is refused holds nothing here, however many there are, and
however slowly they read.
"""

import socket
from dataclasses import dataclass

import structlog

from runnerd.peers import Ids, Peer
from runnerd_protocol.errors import Details
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import ProtocolError

log = structlog.get_logger()

N_OFFENDERS = 64  # who get lines of their own; one user can have thousands of ids
TELL_AGAIN_S = 60.0  # between two lines about the same offender


@dataclass(slots=True)
class _Offender:
    told_at: float
    n_untold: int = 0


class Refusals:
    """Turns clients away, and keeps count of those who should not have tried."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._offenders: dict[int | None, _Offender] = {}  # by uid; None: all for whom is no room

    def not_allowed(
        self, sock: socket.socket, peer: Peer, socket_gid: int | None, now: float
    ) -> None:
        """Turn away who is not allowed to connect; closes the socket."""
        _turn_away(sock, _not_allowed(peer, socket_gid, self._ids))
        self._note(peer, now)

    def too_many(self, sock: socket.socket, limit: int) -> None:
        """Turn away who comes when all connections are taken; closes the socket."""
        message = f"the limit of {limit} connections is reached"
        details: Details = {"max_connections": limit}
        _turn_away(sock, ProtocolError("too_many_connections", message, details=details))

    def sum_up(self) -> None:
        """Log the refusals that no line has told of yet."""
        for uid, offender in self._offenders.items():
            if offender.n_untold:
                log.warning("client.not_allowed", uid=uid, n_more=offender.n_untold)
        self._offenders.clear()

    def _note(self, peer: Peer, now: float) -> None:
        uid: int | None = peer.uid
        if uid not in self._offenders:
            self._forget_the_old(now)
        if uid not in self._offenders and len(self._offenders) >= N_OFFENDERS:
            uid = None
        offender = self._offenders.get(uid)
        if offender is None:
            self._offenders[uid] = _Offender(now)
            log.warning("client.not_allowed", uid=uid, pid=peer.pid)
        elif now - offender.told_at < TELL_AGAIN_S:
            offender.n_untold += 1
        else:
            log.warning("client.not_allowed", uid=uid, pid=peer.pid, n_more=offender.n_untold)
            self._offenders[uid] = _Offender(now)

    def _forget_the_old(self, now: float) -> None:
        """Make room of those about whom there was nothing to tell for a while."""
        for uid, offender in list(self._offenders.items()):
            if now - offender.told_at >= TELL_AGAIN_S:
                if offender.n_untold:
                    log.warning("client.not_allowed", uid=uid, n_more=offender.n_untold)
                del self._offenders[uid]


def _not_allowed(peer: Peer, socket_gid: int | None, ids: Ids) -> ProtocolError:
    who = f"user {peer.uid} may not use this daemon"
    ways = ["come as root or as its own user"]
    if socket_gid is not None and socket_gid != ids.overflow_gid:
        ways.append(f"join the socket's group {socket_gid}")
    if peer.uid == ids.overflow_uid:
        who += ", who is somebody that its user namespace has no number for"
    else:
        ways.append("be named in its allow-users or allow-groups")
    message = f"{who}: {', '.join(ways[:-1])}{' or ' if ways[:-1] else ''}{ways[-1]}"
    return ProtocolError("not_allowed", message, details={"uid": peer.uid, "gid": socket_gid})


def _turn_away(sock: socket.socket, reply: ProtocolError) -> None:
    with sock:
        try:
            sock.send(encode_frame(reply), socket.MSG_DONTWAIT)
        except OSError as err:  # it has left already
            log.debug("client.left_unanswered", code=reply.code, error=err.strerror)
