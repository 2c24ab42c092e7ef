"""One `Generate` in progress: from its arrival to exactly one last answer.

Its task prepares it, submits it when its turn has come, and watches over its deadlines; then
the decode loop goes on with it, and tells its completions.
"""

from collections.abc import Callable
from math import inf
from time import monotonic

import anyio
from msgspec.structs import replace

from runnerd.attachments import Attachments
from runnerd.completions import Completions
from runnerd.condition import health
from runnerd.core.prompt import Prompt
from runnerd.engine.base import Engine
from runnerd.errors import QueueTimeout, RequestError
from runnerd.intake import Share
from runnerd.options import (
    check_images,
    check_options,
    check_tokens_fit,
    is_long,
    media_indexes,
)
from runnerd.outbox import Outbox
from runnerd.request import Request
from runnerd.runner import Runner
from runnerd.turn import Turn
from runnerd.uploads import Uploads
from runnerd_protocol import messages as wire


class Generation(Request):
    """A generation and its answers. It holds its places in the queue from the start.

    `turn` comes when those before it are submitted, or will not be, and ends when it is itself.
    Tasks start in any order on trio, and texts take their time.
    """

    def __init__(
        self,
        message: wire.Generate,
        runner: Runner,
        outbox: Outbox,
        share: Share,
        uploads: Uploads,
        turn: Turn,
        forget: Callable[[Request], None],
    ) -> None:
        super().__init__(message, runner, outbox, share)
        indexes = media_indexes(message.prompt)
        self.turn = turn
        self._wanted = message
        self._forget = forget
        self._n_ahead = runner.places.take(message.n)  # what may refuse it is behind us
        self._completions = Completions(message, runner, outbox, self._end)
        self._arrived_at = anyio.current_time()
        self._queued_at = monotonic()
        self._is_accepted = False
        self._attachments = Attachments(indexes, runner, uploads, share)

    @property
    def _start_by(self) -> float:
        waits_s, lasts_s = self._wanted.queue_timeout_s, self._wanted.timeout_s
        return self._arrived_at + min(waits_s or inf, lasts_s or inf)

    @property
    def is_submitted(self) -> bool:
        """Whether its last answer comes out of the decode loop."""
        return self._completions.are_submitted

    # --- its task --------------------------------------------------------------------------

    async def run(self) -> None:
        """Prepare and submit it, and watch over it as long as there is anything to watch.

        Raises:
            RequestError: it cannot be served; nothing was submitted.
        """
        try:
            await self._begin()
        finally:
            if not self.is_submitted:
                self._attachments.end()
            # It and its completions know each other: what is held here stays for a while.
            self._keep(replace(self._wanted, prompt="", grammar=None, json_schema=None))
        self.accept()
        if self._wanted.return_progress or self._start_by < inf:
            async with anyio.create_task_group() as tasks:
                if self._wanted.return_progress:
                    tasks.start_soon(self._tell_place)
                if self._start_by < inf:
                    await self._keep_time()

    async def _begin(self) -> None:
        """Prepare it and submit it."""
        prepared = None
        try:
            with anyio.CancelScope(deadline=self._start_by):
                prepared = await self._prepare()
        finally:
            self.runner.places.leave(self._wanted.n)
            self.turn.end()
        if prepared is None:
            self.runner.figures.count_unbegun(self._wanted.n, "timeout", self._waited_s)
            raise self._too_late(self._n_ahead)
        prompt, constraint = prepared
        self._completions.submit(prompt, constraint, self._queued_at)
        self.share.give_back()

    def _keep(self, rest: wire.Generate) -> None:
        """Hold no more of the message than what is left of it."""
        self.message = self._wanted = self._completions.message = rest

    async def _prepare(self) -> tuple[Prompt, object | None]:
        """Tokenize and compile, then wait for the turn: the last chance for a cancel, too."""
        if self._attachments:
            await self._attach()
        wanted = self._wanted

        def expand(engine: Engine) -> Prompt:
            self._check(engine)
            return self._attachments.expand(engine, wanted.prompt)

        prompt = await self.runner.vocabulary.read(expand, is_long=is_long(wanted.prompt))
        constraint = None
        if wanted.grammar is not None:
            constraint = await self.runner.vocabulary.constrain("grammar", wanted.grammar)
        elif wanted.json_schema is not None:
            constraint = await self.runner.vocabulary.constrain("json_schema", wanted.json_schema)
        await self.turn.come()
        return prompt, constraint

    def _check(self, engine: Engine) -> None:
        check_options(self._wanted, engine.model)
        check_tokens_fit(self._wanted, engine.limits.n_ctx)

    async def _attach(self) -> None:
        """Have its images read, so that nothing holds their files but the store."""
        engine = await self.runner.vocabulary.loaded()
        check_images(engine.model)
        self._check(engine)
        assert not isinstance(self._wanted.prompt, str), "there is an image"
        prompt = await self._attachments.read(self._wanted.prompt)
        self._keep(replace(self._wanted, prompt=prompt))
        await self._attachments.fetch(self._ask_for)

    def _ask_for(self, missing: list[bytes]) -> None:
        self.accept()
        self.outbox.put(wire.MediaWanted(self.request_id, missing))

    async def _keep_time(self) -> None:
        """End it when its time is over: as failed if it still waits, else with what there is."""
        has_ended = self._completions.has_ended
        with anyio.CancelScope(deadline=self._start_by):
            await has_ended.wait()
            return
        n_ahead = self._completions.n_ahead()
        if n_ahead is not None:
            self._completions.end(self._too_late(n_ahead))
            return
        with anyio.CancelScope(deadline=self._arrived_at + (self._wanted.timeout_s or inf)):
            await has_ended.wait()
            return
        self._completions.end("timeout")

    @property
    def _waited_s(self) -> float:
        return anyio.current_time() - self._arrived_at

    def _too_late(self, n_ahead: int) -> QueueTimeout:
        waited_s = round(self._waited_s, 3)
        return QueueTimeout(
            f"not begun after {waited_s} s, {n_ahead} were before it",
            waited_s=waited_s,
            n_ahead=n_ahead,
            queue_timeout_s=self._wanted.queue_timeout_s,
            timeout_s=self._wanted.timeout_s,
        )

    async def _tell_place(self) -> None:
        """Tell of its place in the queue when that changes, as long as it waits."""
        told = self._n_ahead
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_at_end, tasks.cancel_scope)
            while (n_ahead := self._completions.n_ahead()) is not None:
                if n_ahead != told:
                    self.outbox.put(wire.PromptProgress(self.request_id, n_ahead=n_ahead))
                    told = n_ahead
                await self.runner.line_moved().wait()
            tasks.cancel_scope.cancel()

    async def _stop_at_end(self, scope: anyio.CancelScope) -> None:
        """Cancel a scope once it has ended: the line may stand still after that."""
        await self._completions.has_ended.wait()
        scope.cancel()

    # --- its answers -----------------------------------------------------------------------

    def accept(self) -> None:
        """Say that it is taken; the second time nothing."""
        if not self._is_accepted:
            self._is_accepted = True
            self.runner.figures.n_requests += 1
            state, fraction = health(self.runner), self.runner.loading.fraction
            self.outbox.put(wire.Accepted(self.request_id, self._n_ahead, state, fraction))

    def fail(self, err: RequestError) -> None:
        """Say why it cannot be served."""
        self.runner.figures.n_failed += self._is_accepted
        super().fail(err)

    def _end(self, last: wire.Finished | RequestError) -> None:
        """Give the last answer; from then on the client may use its number again."""
        self._attachments.end()
        self._forget(self)
        if isinstance(last, RequestError):
            self.fail(last)
        else:
            self.outbox.put(last)

    # --- from the session ------------------------------------------------------------------

    @property
    def has_images(self) -> bool:
        """Whether it may take its time until it is submitted, and others should not wait."""
        return bool(self._attachments)

    def put_file(self, data: bytes, share: Share) -> None:
        """Take a file that its client has sent."""
        self._attachments.put(data, share)

    def cancel(self) -> None:
        """End it, wherever it is."""
        if self.is_submitted:
            self._completions.end("cancelled")
        else:
            super().cancel()

    def answer_cancelled(self) -> None:
        """Say that it was cancelled before it was submitted."""
        self.accept()
        self.runner.figures.count_unbegun(self._wanted.n, "cancelled", self._waited_s)
        self.outbox.put(self._completions.cancelled_unbegun(self._waited_s))

    def pause(self, *, paused: bool) -> None:
        """Generate nothing while its client does not read, or go on."""
        self._completions.pause(paused=paused)
