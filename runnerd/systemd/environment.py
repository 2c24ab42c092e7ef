"""What systemd hands to a service in its environment: sd_listen_fds(3), sd_notify(3).

It is meant for one process. It is taken out of the environment, so that no child of ours speaks
for us, and the sockets are closed in whatever we start.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from runnerd.errors import ConfigError

FIRST_FD = 3  # SD_LISTEN_FDS_START
MAX_SOCKETS = 64  # more than a service has socket units for
USEC_INFINITY = 2**64 - 1  # how systemd writes "never"
VARIABLES = (
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
)


@dataclass(frozen=True, slots=True)
class PassedSocket:
    """A listening stream socket that the service manager has made, and keeps for our successor.

    It is closed at the end and no more: neither shut down, nor is its file removed. `name` is
    what the socket unit calls it (FileDescriptorName=).
    """

    socket: socket.socket
    name: str


@dataclass(frozen=True, slots=True)
class ServiceEnvironment:
    """What was handed over; outside a service, nothing.

    `notify_address` is where states are sent. A ping is due every `watchdog_s` at the latest;
    0 where nobody waits for one. `warnings` are for the log: what was there and made no sense.
    """

    notify_address: str = ""
    watchdog_s: float = 0.0
    sockets: tuple[PassedSocket, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_managed(self) -> bool:
        """Whether a service manager has started us, and not somebody at a terminal."""
        return bool(self.notify_address or self.sockets)


def take_environment(is_child: bool) -> ServiceEnvironment:
    """Take what was handed over out of the environment; of a child it was not meant for it.

    Raises:
        ConfigError: there are sockets that cannot be served.
    """
    given = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    if is_child:
        return ServiceEnvironment()
    warnings: list[str] = []
    address, watchdog_s = _notify_address(given, warnings), _watchdog_s(given, warnings)
    return ServiceEnvironment(address, watchdog_s, _sockets(given, warnings), tuple(warnings))


def _notify_address(given: Mapping[str, str], warnings: list[str]) -> str:
    address = given.get("NOTIFY_SOCKET", "")
    if address and (address[0] not in "/@" or len(address) == 1):
        warnings.append(f"NOTIFY_SOCKET={address!r} is neither a path nor an abstract name")
        return ""
    return address


def _watchdog_s(given: Mapping[str, str], warnings: list[str]) -> float:
    text = given.get("WATCHDOG_USEC", "")
    if not text:
        return 0.0
    n_usec, pid = _number(text), _number(given.get("WATCHDOG_PID", str(os.getpid())))
    if not n_usec or n_usec > USEC_INFINITY:
        warnings.append(f"WATCHDOG_USEC={text!r} is not a time")
        return 0.0
    if pid is None:
        warnings.append(f"WATCHDOG_PID={given['WATCHDOG_PID']!r} is not a process id")
    if pid != os.getpid() or n_usec == USEC_INFINITY:
        return 0.0
    return n_usec / 1e6


def _sockets(given: Mapping[str, str], warnings: list[str]) -> tuple[PassedSocket, ...]:
    text, of_whom = given.get("LISTEN_FDS", ""), given.get("LISTEN_PID", "")
    if not text and not of_whom:
        return ()
    pid = _number(of_whom)
    if pid is None and of_whom:
        raise ConfigError(f"LISTEN_PID={of_whom!r} is not a process id")
    if pid != os.getpid():
        warnings.append(f"the sockets of LISTEN_FDS are for process {of_whom or '(none)'}, not us")
        return ()
    n_sockets = _number(text)
    if n_sockets is None or n_sockets > MAX_SOCKETS:
        raise ConfigError(f"LISTEN_FDS={text!r} is not a number of sockets up to {MAX_SOCKETS}")
    names = given["LISTEN_FDNAMES"].split(":") if "LISTEN_FDNAMES" in given else []
    if names and n_sockets and len(names) != n_sockets:
        raise ConfigError(f"LISTEN_FDNAMES has {len(names)} names for {n_sockets} sockets")
    sockets: list[PassedSocket] = []
    try:
        for index in range(n_sockets):
            name = names[index] if names else "unknown"
            sockets.append(PassedSocket(_take_socket(FIRST_FD + index, name), name))
    except BaseException:
        for each in sockets:
            each.socket.close()
        raise
    return tuple(sockets)


def _take_socket(fd: int, name: str) -> socket.socket:
    """Make a listening socket ours alone; its file description stays everybody's."""
    what = f"descriptor {fd} ({name!r}) of the service manager"
    try:
        sock = socket.socket(fileno=fd)
    except OSError as err:
        raise ConfigError(f"{what} is not a socket: {err.strerror}") from err
    fault = ""
    if sock.family != socket.AF_UNIX:
        fault = f"is no unix socket but {_name_of(sock.family)}"
    elif sock.type != socket.SOCK_STREAM:
        fault = f"is no stream socket but {_name_of(sock.type)}"
    elif not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        fault = "does not listen"
    if fault:
        sock.close()
        raise ConfigError(f"{what} {fault}")
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _name_of(kind: int) -> str:
    return kind.name if isinstance(kind, socket.AddressFamily | socket.SocketKind) else str(kind)


def _number(text: str) -> int | None:
    """Return what plain digits say, and not too many of them."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
