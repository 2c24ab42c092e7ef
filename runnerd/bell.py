"""A bell that wakes who waits, again and again.

An event does so once, and takes as long to make as all the rest of a wait: for each token, at
either end of a connection, that is a good part of what there is to do.
"""

import anyio


class Bell:
    """Wakes those who wait when it rings; who comes later waits for the next time.

    Where one of several is cancelled as it rings, another may be woken twice: look what there is,
    and wait again.
    """

    def __init__(self) -> None:
        self._permits = anyio.Semaphore(0)
        self._n_waiting = 0

    def ring(self) -> None:
        """Wake all who wait."""
        if self._n_waiting:
            for _ in range(self._n_waiting):
                self._permits.release()
            self._n_waiting = 0

    async def wait(self) -> None:
        """Wait until it rings."""
        while self._permits.value:  # of those who were cancelled before it rang
            self._permits.acquire_nowait()
        self._n_waiting += 1
        await self._permits.acquire()
