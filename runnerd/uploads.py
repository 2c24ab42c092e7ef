"""What a connection sends of files: which it has sent, and how much waits for one.

A hash stands for a file only to the connection that has sent it: nobody is to find out what
others look at.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import anyio

from runnerd.errors import Overloaded
from runnerd.intake import Intake, Share
from runnerd.media.files import Holder
from runnerd.turn import Turn

N_HASHES = 2048  # of files that a connection has sent; of older ones it is asked again


class Uploads:
    """The files of one connection; `holder` counts those that its requests use.

    A request that waits for a file counts in an intake of its own, with `whole` over all
    connections: in that of its connection it might keep the daemon from reading the file. It waits
    `timeout_s` by `clock`, which stands still while the daemon does not read, and longer for a
    frame that has begun by then; not at all once `has_ended`: the client sends no more.

    `last` is the turn of the last request with files: the next one may name those by their hashes.
    """

    def __init__(self, limit_bytes: int, whole: Intake, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.holder = Holder()
        self.last = Turn()
        self.last.end()
        self.has_ended = False
        self.changed = anyio.Event()  # set, and made anew, when who waits is to look again
        self.came_at = -inf  # by the clock: the last file that a request had asked for
        self.n_lacking = 0  # files that were asked for and have not come
        self._waiting = Intake(limit_bytes, whole)
        self._sent: dict[bytes, None] = {}  # the latest ones last
        self._unread_s = 0.0
        self._unread_since: float | None = None
        self._frame_began_at: float | None = None
        self._is_watched = False  # by who cannot know when to look again

    def __contains__(self, sha256: bytes) -> bool:
        return sha256 in self._sent

    def note(self, sha256: bytes) -> None:
        """Remember that a file was sent."""
        self._sent.pop(sha256, None)
        self._sent[sha256] = None
        if len(self._sent) > N_HASHES:
            del self._sent[next(iter(self._sent))]

    def set_aside(self, share: Share) -> None:
        """Count a request among those that wait for a file.

        Raises:
            Overloaded: they hold too much already, of this connection or of all.
        """
        n_bytes = self._waiting.n_bytes
        if self._waiting.is_full and n_bytes:  # one may wait whatever the others do
            raise Overloaded(
                f"{n_bytes} bytes of the connection's requests wait for files already",
                n_bytes_waiting=n_bytes,
            )
        share.move_to(self._waiting)

    # --- how long one waits ----------------------------------------------------------------

    @property
    def clock(self) -> float:
        """Seconds in which the daemon has read what the client sends."""
        now = anyio.current_time() if self._unread_since is None else self._unread_since
        return now - self._unread_s

    def left_s(self, deadline: float) -> float:
        """Return how long to wait before looking again, if nothing changes; 0: no longer."""
        left_s = deadline - self.clock
        is_coming = self._frame_began_at is not None and self._frame_began_at <= deadline
        if self._unread_since is None and (left_s > 0 or not is_coming):
            return max(left_s, 0.0)
        self._is_watched = True  # the session sees to it that a frame comes to its end
        return inf

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Stop the clock within the block: nothing that the client sends can come."""
        self._unread_since = stopped_at = anyio.current_time()
        try:
            yield
        finally:
            self._unread_since = None
            self._unread_s += anyio.current_time() - stopped_at
            self._ring()

    def begin_frame(self) -> None:
        """Note that a frame has begun, and the one before has come to its end."""
        self._frame_began_at = self.clock
        self._ring()

    def end_frame(self) -> None:
        """Note that no frame is on its way any more."""
        self._frame_began_at = None
        self._ring()

    def end(self) -> None:
        """Note that no more files come."""
        self.has_ended = self._is_watched = True
        self._ring()

    def _ring(self) -> None:
        if not self._is_watched:
            return
        self._is_watched = False
        self.changed.set()
        self.changed = anyio.Event()
