"""What is watched over while a generation waits, or runs: its deadlines, and its place in line."""

from math import inf

import anyio

from runnerd.completions import Completions
from runnerd.errors import QueueTimeout
from runnerd.outbox import Outbox
from runnerd.runner import Runner
from runnerd_protocol import messages as wire


class GenerationWatch:
    """Ends a generation when its time is over; tells its client meanwhile how the line moves.

    To be made when it arrives. It holds nothing of the message, which may be large.
    """

    def __init__(
        self,
        message: wire.Generate,
        runner: Runner,
        outbox: Outbox,
        completions: Completions,
        n_ahead: int,
    ) -> None:
        self._request_id = message.request_id
        self._queue_timeout_s = message.queue_timeout_s
        self._timeout_s = message.timeout_s
        self._tells_place = message.return_progress
        self._runner = runner
        self._outbox = outbox
        self._completions = completions
        self._n_ahead = n_ahead
        self._arrived_at = anyio.current_time()

    @property
    def start_by(self) -> float:
        """Until when it must have begun."""
        return self._arrived_at + min(self._queue_timeout_s or inf, self._timeout_s or inf)

    @property
    def waited_s(self) -> float:
        """Seconds since it arrived."""
        return anyio.current_time() - self._arrived_at

    async def run(self) -> None:
        """Watch over it, once it is submitted, as long as there is anything to watch."""
        if not self._tells_place and self.start_by == inf:
            return
        async with anyio.create_task_group() as tasks:
            if self._tells_place:
                tasks.start_soon(self._tell_place)
            if self.start_by < inf:
                await self._keep_time()

    def too_late(self, n_ahead: int) -> QueueTimeout:
        """Return why it ends without having begun."""
        waited_s = round(self.waited_s, 3)
        return QueueTimeout(
            f"not begun after {waited_s} s, {n_ahead} were before it",
            waited_s=waited_s,
            n_ahead=n_ahead,
            queue_timeout_s=self._queue_timeout_s,
            timeout_s=self._timeout_s,
        )

    async def _keep_time(self) -> None:
        """End it when its time is over: as failed if it still waits, else with what there is."""
        has_ended = self._completions.has_ended
        with anyio.CancelScope(deadline=self.start_by):
            await has_ended.wait()
            return
        n_ahead = self._completions.n_ahead()
        if n_ahead is not None:
            self._completions.end(self.too_late(n_ahead))
            return
        with anyio.CancelScope(deadline=self._arrived_at + (self._timeout_s or inf)):
            await has_ended.wait()
            return
        self._completions.end("timeout")

    async def _tell_place(self) -> None:
        """Tell of its place in the queue when that changes, as long as it waits."""
        told = self._n_ahead
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_at_end, tasks.cancel_scope)
            while (n_ahead := self._completions.n_ahead()) is not None:
                if n_ahead != told:
                    self._outbox.put(wire.PromptProgress(self._request_id, n_ahead=n_ahead))
                    told = n_ahead
                await self._runner.line_moved().wait()
            tasks.cancel_scope.cancel()

    async def _stop_at_end(self, scope: anyio.CancelScope) -> None:
        """Cancel a scope once it has ended: the line may stand still after that."""
        await self._completions.has_ended.wait()
        scope.cancel()
