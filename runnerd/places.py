"""Places in the queue, held from a request's arrival on: also while it is being prepared."""

from collections.abc import Callable

from runnerd.core.batcher import Batcher
from runnerd.errors import InvalidRequest, Overloaded


class Places:
    """The places of one runner. `check_open` raises if nothing is served any more.

    Until there is a `batcher` all slots are free. `max_queue` may change at any time: whoever
    has a place keeps it.
    """

    def __init__(self, n_slots: int, max_queue: int, check_open: Callable[[], None]) -> None:
        self.batcher: Batcher | None = None
        self._n_slots = n_slots
        self.max_queue = max_queue
        self._check_open = check_open
        self._n_preparing = 0
        self._n_embedding = 0

    def take(self, n: int) -> int:
        """Hold places until `leave`; return how many are ahead of them.

        Raises:
            InvalidRequest: there are not so many, even if nobody else is here.
            Overloaded: the queue is full.
            LoadFailed, ShuttingDown: nothing is served any more.
        """
        self._check_open()
        n_most = self._n_slots + self.max_queue
        if n > n_most:
            raise InvalidRequest("n", n, f"at most {n_most}, the slots and the queue")
        n_waiting = self._n_waiting(n)
        n_ahead = max(0, n_waiting - n)
        if n_waiting > self.max_queue:
            raise self._overloaded(n_ahead, n)
        self._n_preparing += n
        return n_ahead

    def leave(self, n: int) -> None:
        """Give places back: what they were for is submitted, or will not be."""
        self._n_preparing -= n

    def take_embedding(self) -> None:
        """Hold a place for a request for embeddings, until `leave_embedding`.

        It needs no slot, and is in nobody's way in the queue; but there are no more of them than
        the queue holds.

        Raises:
            Overloaded: the queue is full.
            LoadFailed, ShuttingDown: nothing is served any more.
        """
        self._check_open()
        n_waiting = self.n_waiting
        if n_waiting > self.max_queue:
            raise self._overloaded(n_waiting, 1)
        self._n_embedding += 1

    def leave_embedding(self) -> None:
        """Give a place back: the request has its answer."""
        self._n_embedding -= 1

    @property
    def n_waiting(self) -> int:
        """Completions that no free slot is about to take, and all requests for embeddings."""
        return self._n_waiting(0) + self._n_embedding

    def _n_waiting(self, n_more: int) -> int:
        n_more += self._n_preparing
        if self.batcher is None:
            return max(0, n_more - self._n_slots)
        return self.batcher.n_waiting(n_more)

    def _overloaded(self, n_waiting: int, n_more: int) -> Overloaded:
        return Overloaded(
            f"{n_waiting} requests wait, no room for {n_more}: the queue holds {self.max_queue}",
            n_waiting=n_waiting,
            max_queue=self.max_queue,
        )
