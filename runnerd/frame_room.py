"""Room for large frames that have begun: bounds what they hold in memory, over all connections.

A connection that has sent more than a small part of a frame takes as much room as the frame
announces, or waits its turn for it; what it sends meanwhile stays in its socket, which is small.
Nor does a large frame go on while requests that are whole already take too much. Small frames
never wait. A frame has to be complete in a given time, so none keeps the others waiting for ever.
"""

import anyio

from runnerd.intake import Intake

ROOM_BYTES = 256 * 2**20  # of frames: 16 of the largest at once, and hundreds of images
SMALL_BYTES = 2**16  # of a frame that needs no room: all connections together hold 16 MiB of these


class FrameRoom:
    """The room for frames of all connections; `intake` counts the requests that are whole."""

    def __init__(self, intake: Intake, limit_bytes: int = ROOM_BYTES) -> None:
        self.turn = anyio.Lock()  # to read much at once: one does for each turn of the loop
        self._intake = intake
        self._limit_bytes = limit_bytes
        self._n_bytes = 0
        self._line = anyio.Lock()
        self._left = anyio.Event()

    async def enter(self, n_bytes: int) -> None:
        """Wait for the room that a frame takes; whoever came first is first."""
        async with self._line:
            while self._n_bytes and self._n_bytes + n_bytes > self._limit_bytes:
                await self._left.wait()
            while self._intake.is_full:
                await self._intake.given_back.wait()
            self._n_bytes += n_bytes

    def leave(self, n_bytes: int) -> None:
        """Give back the room of a frame that is complete, or never will be."""
        self._n_bytes -= n_bytes
        self._left.set()
        self._left = anyio.Event()


class FrameInRoom:
    """What the unfinished frame of one connection takes of the room."""

    def __init__(self, room: FrameRoom) -> None:
        self._room = room
        self._n_bytes = 0
        self._number = 0  # which of the connection's frames it is

    @property
    def is_in_room(self) -> bool:
        """Whether it takes any."""
        return self._n_bytes > 0

    async def follow(self, number: int, n_pending: int, n_missing: int) -> None:
        """Take note of how far the connection's frame is; wait where there is no room for it."""
        self.let_go_if_complete(number, n_pending)
        if n_pending > SMALL_BYTES and not self._n_bytes:
            n_bytes = n_pending + n_missing
            await self._room.enter(n_bytes)
            self._n_bytes = n_bytes

    def let_go_if_complete(self, number: int, n_pending: int) -> None:
        """Give the room back if the connection is at another frame by now, or between two."""
        if number != self._number or not n_pending:
            self.let_go()
            self._number = number

    def let_go(self) -> None:
        """Give the room back; a second call does nothing."""
        if self._n_bytes:
            self._room.leave(self._n_bytes)
            self._n_bytes = 0
