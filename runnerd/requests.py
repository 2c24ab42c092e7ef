"""One connection's requests in progress.

A handler that has to wait runs in a task of its own, under the request's scope, and answers
through the outbox. Each request ends in exactly one last answer, whatever happens to it.
"""

from collections.abc import Awaitable

import anyio
from anyio.abc import TaskGroup

from runnerd.board import Board
from runnerd.config import SessionLimits
from runnerd.core.parts import check_tokens
from runnerd.embed_request import Embedding
from runnerd.engine.base import Engine
from runnerd.errors import Internal, Overloaded, RequestError
from runnerd.generation import Generation
from runnerd.intake import Intake, Share
from runnerd.options import INLINE_SIZE, is_long, parts_of
from runnerd.outbox import Outbox
from runnerd.planning import Planning
from runnerd.replies import failed, model
from runnerd.request import Request, log_crash
from runnerd.request_log import RequestLog, RequestMessage
from runnerd.runner import Runner
from runnerd.turn import Turn
from runnerd.uploads import Uploads
from runnerd_protocol import messages as wire

MAY_TAKE_LONG = wire.Generate | wire.Embed | wire.Subscribe | wire.Plan


class Requests:
    """Takes a connection's requests, and answers them through its outbox."""

    def __init__(
        self,
        runner: Runner,
        outbox: Outbox,
        tasks: TaskGroup,
        limits: SessionLimits,
        board: Board,
        planning: Planning,
    ) -> None:
        self._runner = runner
        self._outbox = outbox
        self._tasks = tasks
        self._limits = limits
        self._board = board
        self._planning = planning
        self._intake = Intake(limits.intake_bytes, runner.intake)
        self.uploads = Uploads(limits.intake_bytes, runner.uploads, limits.media_timeout_s)
        self._requests: dict[int, Request] = {}
        self._last_turn = Turn()
        self._last_turn.end()

    def __len__(self) -> int:
        return len(self._requests)

    async def wait_for_room(self) -> None:
        """Wait until the client's requests in preparation take so little that more may come."""
        await self._intake.wait_for_room()

    def start(self, message: RequestMessage, n_bytes: int) -> None:
        """Take a request up, of a payload of `n_bytes`; never waits."""
        request_id = message.request_id
        if isinstance(message, wire.GetStatus):
            self._outbox.put(self._board.status(request_id))
            RequestLog(message).finished("complete")
            return
        share = Share(self._intake, n_bytes)
        try:
            self._check_limits(message)
            request = self._request_of(message, share)
        except RequestError as err:
            share.give_back()
            self._refuse(message, err)
            return
        except Exception as err:
            share.give_back()
            log_crash(request_id, err)
            self._refuse(message, Internal())
            return
        self._requests[request_id] = request
        if isinstance(request, Generation):
            if not request.has_images:  # nobody waits for those
                self._last_turn = request.turn
            if self._runner.engine is None:
                request.accept()
        self._tasks.start_soon(self._run, request)

    def _refuse(self, message: RequestMessage, err: RequestError) -> None:
        self._runner.troubles.note(err)
        self._outbox.put(failed(message.request_id, err))
        RequestLog(message).failed(err)

    def _check_limits(self, message: RequestMessage) -> None:
        n_requests, n_most = len(self._requests), self._limits.max_requests
        if n_requests >= n_most:
            raise Overloaded(
                f"connection has {n_requests} requests in progress, the limit is {n_most}",
                n_requests=n_requests,
                max_requests=n_most,
            )
        if isinstance(message, wire.Subscribe):
            n_subscriptions, n_most = self._n_of(wire.Subscribe), self._limits.max_subscriptions
            if n_subscriptions >= n_most:
                raise Overloaded(
                    f"connection has {n_subscriptions} subscriptions, the limit is {n_most}",
                    n_subscriptions=n_subscriptions,
                    max_subscriptions=n_most,
                )
        if isinstance(message, wire.Plan):
            n_plans, n_most = self._n_of(wire.Plan), self._limits.max_plans
            if n_plans >= n_most:
                raise Overloaded(
                    f"connection waits for {n_plans} plans, the limit is {n_most}",
                    n_plans=n_plans,
                    max_plans=n_most,
                )

    def _n_of(self, kind: type[wire.Subscribe | wire.Plan]) -> int:
        return sum(isinstance(each.message, kind) for each in self._requests.values())

    def _request_of(self, message: RequestMessage, share: Share) -> Request:
        runner, outbox = self._runner, self._outbox
        match message:
            case wire.Generate():
                turn = Turn(self._last_turn)
                return Generation(message, runner, outbox, share, self.uploads, turn, self._forget)
            case wire.Embed():
                request = Embedding(message, runner, outbox, share)
                runner.figures.n_embeds += 1
                return request
            case _:
                return Request(message, runner, outbox, share)

    def put_file(self, message: wire.Media, n_bytes: int) -> None:
        """Hand a file to the request that has asked for it."""
        request = self._requests.get(message.request_id)
        if isinstance(request, Generation):
            request.put_file(message.data, Share(self._intake, n_bytes))

    def cancel(self, request_id: int) -> None:
        """End what may take long, of this connection; the rest is answered soon anyway."""
        request = self._requests.get(request_id)
        if request is not None and isinstance(request.message, MAY_TAKE_LONG):
            request.cancel()

    def cancel_all(self, *, only_subscriptions: bool = False) -> None:
        """End every request, as when the client has gone: what is no stream stays unanswered."""
        for request in list(self._requests.values()):
            if not only_subscriptions or isinstance(request.message, wire.Subscribe):
                request.cancel()

    def fail_all(self, err: RequestError) -> None:
        """Answer every request with an error that is none of the client's."""
        for request in list(self._requests.values()):
            request.cancel(err)

    def pause(self, request_id: int, paused: bool) -> None:  # a callback
        """Stop a generation while its client does not read, or let it go on."""
        if request_id in self._requests:
            self._requests[request_id].pause(paused=paused)

    async def _run(self, request: Request) -> None:
        try:
            with request.scope:
                await self._handle(request)
            was_cancelled = request.scope.cancelled_caught
            if was_cancelled:
                self._answer_cancelled(request)
            if not request.is_submitted:
                reason = "cancelled" if was_cancelled else "complete"
                request.log.finished(reason, **request.numbers)
        except anyio.get_cancelled_exc_class():  # with its connection: nobody hears of its end
            if not request.is_submitted:
                request.log.finished("cancelled", **request.numbers)
            raise
        except Exception as err:
            self._runner.figures.n_embeds_failed += isinstance(request, Embedding)
            if isinstance(err, RequestError):
                request.fail(err)
            else:
                request.crash(err)
        finally:
            request.share.give_back()
        if not request.is_submitted:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        """Let go of a request that has its last answer."""
        del self._requests[request.request_id]

    def _handle(self, request: Request) -> Awaitable[None]:
        if isinstance(request, Generation | Embedding):
            return request.run()
        match request.message:
            case wire.Tokenize() as message:
                return self._tokenize(message)
            case wire.Detokenize() as message:
                return self._detokenize(message)
            case wire.Subscribe() as message:
                return self._subscribe(message)
            case wire.GetModel() as message:
                return self._get_model(message)
            case wire.Plan() as message:
                return self._plan(message)
            case _:
                raise AssertionError("answered at once")

    def _answer_cancelled(self, request: Request) -> None:
        if isinstance(request.message, wire.Subscribe):
            self._outbox.put(self._board.status(request.request_id))
        else:
            request.answer_cancelled()

    # --- everything else -------------------------------------------------------------------

    async def _tokenize(self, message: wire.Tokenize) -> None:
        def expand(engine: Engine) -> list[int]:
            return list(engine.expand(parts_of(message.prompt), add_bos=message.add_bos).inputs)

        tokens = await self._runner.vocabulary.read(expand, is_long=is_long(message.prompt))
        self._outbox.put(wire.Tokens(message.request_id, tokens))

    async def _detokenize(self, message: wire.Detokenize) -> None:
        def join(engine: Engine) -> str:
            check_tokens(message.tokens, engine.model.n_vocab, "tokens")
            data = b"".join(map(engine.token_bytes, message.tokens))
            return data.decode("utf-8", "replace")

        has_many = len(message.tokens) > INLINE_SIZE
        text = await self._runner.vocabulary.read(join, is_long=has_many)
        self._outbox.put(wire.Text(message.request_id, text))

    async def _get_model(self, message: wire.GetModel) -> None:
        self._outbox.put(model(message.request_id, await self._runner.vocabulary.loaded()))

    async def _plan(self, message: wire.Plan) -> None:
        memory = await self._planning.memory(message)
        self._outbox.put(wire.MemoryReport(message.request_id, memory))

    async def _subscribe(self, message: wire.Subscribe) -> None:
        while True:
            changed = self._runner.changed
            self._outbox.put(self._board.news(message.request_id))
            with anyio.move_on_after(message.interval_s):
                await changed.wait()
