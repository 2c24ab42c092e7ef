"""What the daemon tells systemd, if it was started by it: sd_notify(3) in a few lines.

Outside systemd there is no NOTIFY_SOCKET, and nothing is sent.
"""

import os
import socket

import structlog

log = structlog.get_logger()

STATUS_S = 1.0  # how often the progress of a phase is worth telling


class Notifier:
    """Sends states to the service manager; never waits for it."""

    def __init__(self, address: str = "") -> None:
        # "@" stands for the NUL byte that begins an abstract name.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._phase = ""
        self._told_at = float("-inf")

    @classmethod
    def from_environment(cls) -> "Notifier":
        """Take the address out of the environment, so that no child of ours uses it."""
        return cls(os.environ.pop("NOTIFY_SOCKET", ""))

    def ready(self, status: str) -> None:
        """Say that clients are served from here on."""
        self._send("READY=1", f"STATUS={status}")

    def loading(self, phase: str, fraction: float, now: float) -> None:
        """Say how far the load is: at each new phase, and within one now and then."""
        if phase != self._phase or now - self._told_at >= STATUS_S:
            self._phase, self._told_at = phase, now
            self._send(f"STATUS=loading: {phase}, {fraction:.0%}")

    def stopping(self, status: str) -> None:
        """Say that the end has begun."""
        self._send("STOPPING=1", f"STATUS={status}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(), self._address)
        except OSError as err:
            log.warning("systemd.not_told", text=text, error=err.strerror)
