"""What systemd hands to a service in its environment: sd_listen_fds(3), sd_notify(3)."""

import socket
from dataclasses import dataclass


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
    0 where nobody waits for one.
    """

    notify_address: str = ""
    watchdog_s: float = 0.0
    sockets: tuple[PassedSocket, ...] = ()
