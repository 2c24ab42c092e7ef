"""One `Generate` in progress: from its arrival to exactly one last answer.

Its task prepares it and submits it when its turn has come; then the decode loop goes on with it,
and tells its completions.
"""

from collections.abc import Callable
from time import monotonic

import anyio
from msgspec.structs import replace

from runnerd.attachments import Attachments
from runnerd.completions import Completions
from runnerd.condition import health
from runnerd.core.prompt import Prompt
from runnerd.engine.base import Engine
from runnerd.errors import Internal, RequestError
from runnerd.generation_watch import GenerationWatch
from runnerd.intake import Share
from runnerd.options import (
    check_images,
    check_options,
    check_tokens_fit,
    is_long,
    media_indexes,
)
from runnerd.outbox import Outbox
from runnerd.request import Request, log_crash
from runnerd.request_log import Number
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
        self._completions = Completions(message, runner, outbox, self._end, self.crash)
        self._queued_at = monotonic()
        self._is_accepted = False
        self._attachments = Attachments(indexes, runner, uploads, share)
        try:
            self._n_ahead = runner.places.take(message.n)  # what else may go wrong is behind us
        except RequestError:
            self._let_go()
            raise
        self._watch = GenerationWatch(message, runner, outbox, self._completions, self._n_ahead)

    @property
    def is_submitted(self) -> bool:
        """Whether its last answer comes out of the decode loop."""
        return self._completions.are_submitted

    @property
    def numbers(self) -> dict[str, Number]:
        """What its completions have taken."""
        return self._completions.numbers

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
            self._let_go()
        self.accept()
        await self._watch.run()

    async def _begin(self) -> None:
        """Prepare it and submit it."""
        prepared = None
        try:
            with anyio.CancelScope(deadline=self._watch.start_by):
                prepared = await self._prepare()
        finally:
            self.runner.places.leave(self._wanted.n)
            self.turn.end()
        if prepared is None:
            self.runner.figures.count_unbegun(self._wanted.n, "timeout", self._watch.waited_s)
            raise self._watch.too_late(self._n_ahead)
        prompt, constraint = prepared
        self._completions.submit(prompt, constraint, self._queued_at)
        self.share.give_back()

    def _let_go(self) -> None:
        """Hold no more of the message than its options.

        We and our completions know each other: what is held here stays for a while.
        """
        self._keep(replace(self._wanted, prompt="", grammar=None, json_schema=None))

    def _keep(self, rest: wire.Generate) -> None:
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

    def crash(self, err: Exception) -> None:
        """Fail by an error of ours, at once; what its completions still have to say is lost."""
        if not self.is_submitted:
            super().crash(err)
            return
        log_crash(self.request_id, err)
        if not self._completions.has_ended.is_set():
            self._completions.abandon(Internal())
            self._end(Internal())

    def _end(self, last: wire.Finished | RequestError) -> None:
        """Give the last answer; from then on the client may use its number again."""
        self._attachments.end()
        if isinstance(last, RequestError):
            self.fail(last)
        else:
            self.outbox.put(last)
            self.log.finished(last.reason, **self.numbers)
        self._forget(self)

    # --- from the session ------------------------------------------------------------------

    @property
    def has_images(self) -> bool:
        """Whether it may take its time until it is submitted, and others should not wait."""
        return bool(self._attachments)

    def put_file(self, data: bytes, share: Share) -> None:
        """Take a file that its client has sent."""
        self._attachments.put(data, share)

    def cancel(self, err: RequestError | None = None) -> None:
        """End it, wherever it is; with an error, as failed by that."""
        if self.is_submitted:
            self._completions.end(err or "cancelled")
        else:
            super().cancel(err)

    def answer_cancelled(self) -> None:
        """Say that it was cancelled before it was submitted, or by what it failed."""
        self.accept()
        if self._failed_by is not None:
            self.fail(self._failed_by)
            return
        self.runner.figures.count_unbegun(self._wanted.n, "cancelled", self._watch.waited_s)
        self.outbox.put(self._completions.cancelled_unbegun(self._watch.waited_s))
        self.log.finished("cancelled", **self.numbers)

    def pause(self, *, paused: bool) -> None:
        """Generate nothing while its client does not read, or go on."""
        self._completions.pause(paused=paused)
