"""Until when a client has to have greeted us, or to have completed the frame that it has begun."""

import anyio

from runnerd.config import SessionLimits
from runnerd.uploads import Uploads
from runnerd_protocol.connection import ServerConnection
from runnerd_protocol.messages import ProtocolError


class FrameClock:
    """Watches how far a connection is; who waits for its files is told of each frame."""

    def __init__(
        self, connection: ServerConnection, limits: SessionLimits, uploads: Uploads
    ) -> None:
        self._connection = connection
        self._limits = limits
        self._uploads = uploads
        self._deadline = anyio.current_time() + limits.handshake_timeout_s
        self._n_frames = 0

    @property
    def left_s(self) -> float:
        """Seconds until it is too late; without end between two frames."""
        return self._deadline - anyio.current_time()

    def allow(self, seconds: float) -> None:
        """Give it more time: it could not be read, and that was not its doing."""
        self._deadline += seconds

    def follow(self) -> None:
        """Take note of how far the connection is now."""
        if self._connection.version is None:
            return
        if not self._connection.is_mid_frame:
            self._deadline = float("inf")
            self._uploads.end_frame()
        elif self._deadline == float("inf") or self._n_frames != self._connection.n_frames:
            self._deadline = anyio.current_time() + self._limits.frame_timeout_s
            self._uploads.begin_frame()
        self._n_frames = self._connection.n_frames

    @property
    def verdict(self) -> ProtocolError:
        """What to tell who was too late."""
        if self._connection.version is None:
            seconds = self._limits.handshake_timeout_s
            return ProtocolError("handshake_timeout", f"no hello within {seconds} s")
        seconds = self._limits.frame_timeout_s
        return ProtocolError("frame_timeout", f"a frame was not complete within {seconds} s")
