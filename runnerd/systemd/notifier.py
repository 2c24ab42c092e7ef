"""What the daemon tells systemd, if it was started by it: sd_notify(3) in a few lines.

Nothing is sent where nobody listens. systemd is never waited for: what it does not take at
once is lost, and only where a loss would do harm is the caller told, to try again.
"""

import errno
import socket
from time import CLOCK_MONOTONIC, clock_gettime_ns

import structlog

log = structlog.get_logger()

STATUS_S = 1.0  # how often the progress of a phase is worth telling
MAX_STATUS_CHARS = 500  # systemd drops datagrams of more than 4096 bytes


class Notifier:
    """Sends states to the service manager at an address, "" for none.

    Each move of a load gives it another `load_timeout_s` before it counts as stuck.
    """

    def __init__(self, address: str = "", load_timeout_s: float = 300.0) -> None:
        # "@" stands for the NUL byte that begins an abstract name.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._load_timeout_s = load_timeout_s
        self._moved_to = ("", -1.0)
        self._told_at = float("-inf")
        self._serving = ""
        self._has_complained = False

    def loading(self, phase: str, fraction: float, now: float) -> None:
        """Say how far the load is, and ask for time: at a new phase, and within one now and then.

        A load that has not moved since gets nothing.
        """
        if (phase, fraction) == self._moved_to:
            return
        if phase == self._moved_to[0] and now - self._told_at < self._interval_s:
            return
        self._moved_to, self._told_at = (phase, fraction), now
        self._send(
            f"EXTEND_TIMEOUT_USEC={_usec(self._load_timeout_s)}",
            f"STATUS=loading: {phase}, {fraction:.0%}",
        )

    @property
    def _interval_s(self) -> float:
        return min(STATUS_S, self._load_timeout_s / 4)

    def ready(self, status: str) -> bool:
        """Say that clients are served from here on; return whether there was room for it."""
        self._serving = status
        return self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> bool:
        """Say that settings are being read; `reloaded` has to follow where there was room."""
        n_usec = clock_gettime_ns(CLOCK_MONOTONIC) // 1000
        return self._send("RELOADING=1", f"MONOTONIC_USEC={n_usec}", "STATUS=reading the settings")

    def reloaded(self, outcome: str) -> bool:
        """Say that it goes on, with what settings; return whether there was room for it."""
        return self._send("READY=1", f"STATUS={self._serving}; {outcome}")

    def stalled(self, cause: str) -> None:
        """Say what does not go on."""
        self._send(f"STATUS=stalled: {cause}")

    def resumed(self) -> None:
        """Say that it goes on after all."""
        self._send(f"STATUS={self._serving}")

    def stopping(self, status: str) -> None:
        """Say that the end has begun."""
        self._serving = status
        self._send("STOPPING=1", f"STATUS={status}")

    def draining(self, status: str, extension_s: float) -> None:
        """Say how far the end is, and ask for so much time from now on."""
        self._serving = status
        self._send(f"EXTEND_TIMEOUT_USEC={_usec(extension_s)}", f"STATUS={status}")

    def failed(self, cause: str, error: BaseException | None = None) -> None:
        """Say why there will be no service: the last that is shown of it."""
        self._serving = f"failed: {cause}"
        number = _errno_of(error)
        self._send(f"STATUS=failed: {cause}", *([] if number is None else [f"ERRNO={number}"]))

    def stopped(self) -> None:
        """Say that the end was in good order."""
        self._send("STATUS=stopped")

    def ping(self) -> None:
        """Say that all is well."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> bool:
        """Return False if the manager has too much to read, and may have room later."""
        if not self._address:
            return True
        text = "\n".join(_one_line(line) for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(errors="replace"), self._address)
        except OSError as err:
            if not self._has_complained:  # once: pings would fill the log
                self._has_complained = True
                log.warning("systemd.not_told", text=text, error=err.strerror or str(err))
            return err.errno not in (errno.EAGAIN, errno.ENOBUFS)
        return True


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_STATUS_CHARS]


def _usec(seconds: float) -> int:
    return round(seconds * 1e6)


def _errno_of(error: BaseException | None) -> int | None:
    """Return the number of the OSError that an error is, or comes from; None if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        error = error.__cause__
    return None
