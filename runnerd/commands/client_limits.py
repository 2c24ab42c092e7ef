"""The options of `serve` that say who may connect, and what one connection may do.

An alias is an option's type and help, as in `model_options`; users and groups are looked up here.
"""

import grp
import pwd
from collections.abc import Callable
from typing import Annotated

import typer

from runnerd.config import SessionLimits
from runnerd.errors import ConfigError
from runnerd.peers import OVERFLOW_ID, Access

MAX_ID = 2**32 - 2  # the next one is -1, which means "none" in system calls

PANEL = "Clients"

AllowUsers = Annotated[
    list[str] | None,
    typer.Option(
        help="A user who may connect, besides root and our own; a name or a number. May be given"
        " again.",
        metavar="USER",
        rich_help_panel=PANEL,
    ),
]
AllowGroups = Annotated[
    list[str] | None,
    typer.Option(
        help="A group whose members may connect; a name or a number. May be given again.",
        metavar="GROUP",
        rich_help_panel=PANEL,
    ),
]
MaxConnections = Annotated[
    int, typer.Option(help="Clients at the same time.", rich_help_panel=PANEL)
]
MaxRequests = Annotated[
    int, typer.Option(help="Requests of one connection at the same time.", rich_help_panel=PANEL)
]
OutboxKib = Annotated[
    int,
    typer.Option(
        help="Text that may wait for a client that does not read, before its request pauses.",
        metavar="KIB",
        rich_help_panel=PANEL,
    ),
]
HandshakeTimeout = Annotated[
    float,
    typer.Option(help="Seconds for a client to say hello.", metavar="S", rich_help_panel=PANEL),
]
FrameTimeout = Annotated[
    float,
    typer.Option(
        help="Seconds for a message that has begun to be complete.",
        metavar="S",
        rich_help_panel=PANEL,
    ),
]
WriteTimeout = Annotated[
    float,
    typer.Option(
        help="Seconds without reading after which a client is cut off.",
        metavar="S",
        rich_help_panel=PANEL,
    ),
]


def session_limits(
    *,
    max_requests: int,
    outbox_kib: int,
    handshake_timeout: float,
    frame_timeout: float,
    write_timeout: float,
) -> SessionLimits:
    """Return the limits of a connection that the options say."""
    return SessionLimits(
        max_requests=max_requests,
        outbox_bytes=outbox_kib * 2**10,
        handshake_timeout_s=handshake_timeout,
        frame_timeout_s=frame_timeout,
        write_timeout_s=write_timeout,
    )


def access(users: list[str] | None, groups: list[str] | None) -> Access:
    """Return whom the options let in.

    Raises:
        ConfigError: there is no such user or group, or it stands for everybody.
    """
    return Access(
        frozenset(_id("allow-users", each, _uid) for each in users or ()),
        frozenset(_id("allow-groups", each, _gid) for each in groups or ()),
    )


def _uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def _gid(name: str) -> int:
    return grp.getgrnam(name).gr_gid


def _id(option: str, text: str, look_up: Callable[[str], int]) -> int:
    """Return the id that a name or a number stands for; a number need not be known."""
    if text.isascii() and text.isdecimal():
        number = int(text[:20])  # one digit more than any id is enough to be refused
        if number > MAX_ID:
            raise ConfigError(f"{option} {text[:20]} is not between 0 and {MAX_ID}")
    else:
        try:
            number = look_up(text)
        except (KeyError, ValueError) as err:  # a name with a NUL in it is a ValueError
            raise ConfigError(f"{option} {text!r} is not known on this machine") from err
    if number == OVERFLOW_ID:
        raise ConfigError(
            f"{option} {text} is id {OVERFLOW_ID}, which stands for all whom a container or"
            " PrivateUsers= hides: it would let in everybody"
        )
    return number
