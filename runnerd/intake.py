"""How much memory the requests take that are still being prepared.

A prompt of a few megabytes becomes many times as much while it is tokenized, and the queue
counts requests, not bytes. So a connection with more than its limit in preparation is not
read on, nor is any with something in preparation while all together have too much. A connection
with nothing in preparation is always read: each can bring in a frame, and none shuts another out.
"""

import anyio


class Intake:
    """Bytes of payload in preparation: of a connection, or with `whole` None of all of them."""

    def __init__(self, limit_bytes: int, whole: "Intake | None" = None) -> None:
        self.n_bytes = 0
        self.given_back = anyio.Event()  # set, and made anew, when there are less
        self._limit_bytes = limit_bytes
        self._whole = whole

    @property
    def is_full(self) -> bool:
        """Whether there are more than the limit, here or in the whole."""
        is_whole_full = self._whole is not None and self._whole.is_full
        return self.n_bytes > self._limit_bytes or is_whole_full

    def take(self, n_bytes: int) -> None:
        """Count a request that has come."""
        self.n_bytes += n_bytes
        if self._whole is not None:
            self._whole.take(n_bytes)

    def give_back(self, n_bytes: int) -> None:
        """Count a request no more: it is prepared, or has its answer."""
        self.n_bytes -= n_bytes
        if self._whole is not None:
            self._whole.give_back(n_bytes)
        self.given_back.set()
        self.given_back = anyio.Event()

    async def wait_for_room(self) -> None:
        """Wait until a connection may be read on."""
        while self.is_full and self.n_bytes:
            await (self._whole or self).given_back.wait()


class Share:
    """What one message takes of an intake, until it is given back."""

    def __init__(self, intake: Intake, n_bytes: int) -> None:
        intake.take(n_bytes)
        self._intake = intake
        self._n_bytes = n_bytes

    def shrink(self, n_bytes: int) -> None:
        """Count so many bytes less: the rest is still needed."""
        n_bytes = min(n_bytes, self._n_bytes)
        self._n_bytes -= n_bytes
        self._intake.give_back(n_bytes)

    def move_to(self, intake: Intake) -> None:
        """Count the rest elsewhere from now on."""
        intake.take(self._n_bytes)
        self._intake.give_back(self._n_bytes)
        self._intake = intake

    def give_back(self) -> None:
        """Count nothing more; a second call does nothing."""
        if self._n_bytes:
            self.shrink(self._n_bytes)
