"""One connection's requests in progress.

A handler that has to wait runs in a task of its own, under the request's scope, and answers
through the outbox. Each request ends in exactly one last answer, whatever happens to it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

import anyio
import structlog
from anyio import CapacityLimiter, to_thread
from anyio.abc import TaskGroup

from runnerd.core.batcher import Emission
from runnerd.core.prompt import Prompt, TokensPart
from runnerd.engine.base import Engine
from runnerd.errors import Overloaded, RequestError
from runnerd.outbox import Outbox
from runnerd.replies import finished, model, options_of, parts_of, size_of, status
from runnerd.runner import Runner
from runnerd_protocol import messages as wire

log = structlog.get_logger()

T = TypeVar("T")

INLINE_SIZE = 2**13  # what is longer is tokenized in a thread; for shorter the hop costs more

RequestMessage = (
    wire.Generate
    | wire.Tokenize
    | wire.Detokenize
    | wire.GetStatus
    | wire.Subscribe
    | wire.GetModel
)


def _already() -> anyio.Event:
    event = anyio.Event()
    event.set()
    return event


@dataclass(slots=True, eq=False)
class Request:
    """A request in progress. `n_unsent` tokens were sampled since the last delta.

    `turn` is set when the generation before it is submitted, or will not be; `next_turn` when
    it is itself. Tasks start in any order on trio, and texts take their time.
    """

    message: RequestMessage
    turn: anyio.Event = field(default_factory=_already)
    next_turn: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    n_ahead: int = 0
    seq_id: int | None = None
    is_accepted: bool = False
    n_unsent: int = 0
    n_text_bytes: int = 0


class Requests:
    """Takes a connection's requests, and answers them through its outbox."""

    def __init__(
        self,
        runner: Runner,
        outbox: Outbox,
        tasks: TaskGroup,
        n_most: int,
        n_connections: Callable[[], int],
    ) -> None:
        self._runner = runner
        self._outbox = outbox
        self._tasks = tasks
        self._n_most = n_most
        self._n_connections = n_connections
        self._requests: dict[int, Request] = {}
        self._tokenizing = CapacityLimiter(1)
        self._last_turn = _already()

    def __len__(self) -> int:
        return len(self._requests)

    def start(self, message: RequestMessage) -> None:
        """Take a request up; never waits."""
        request_id = message.request_id
        if len(self._requests) >= self._n_most:
            self._fail(
                request_id,
                Overloaded(
                    f"connection has {len(self._requests)} requests in progress,"
                    f" the limit is {self._n_most}",
                    n_requests=len(self._requests),
                    max_requests=self._n_most,
                ),
            )
        elif isinstance(message, wire.GetStatus):
            self._outbox.put(self._status(request_id, last=True))
        elif isinstance(message, wire.Generate):
            self._start_generating(message)
        else:
            request = self._requests[request_id] = Request(message)
            self._tasks.start_soon(self._run, request)

    def _start_generating(self, message: wire.Generate) -> None:
        try:
            n_ahead = self._runner.take_place()
        except RequestError as err:
            self._fail(message.request_id, err)
            return
        request = Request(message, self._last_turn, n_ahead=n_ahead)
        self._last_turn = request.next_turn
        self._requests[message.request_id] = request
        if self._runner.engine is None:
            self._accept(request)
        self._tasks.start_soon(self._run, request)

    def cancel(self, request_id: int) -> None:
        """End a generation or subscription of this connection; the rest answers soon anyway."""
        request = self._requests.get(request_id)
        if request is None:
            return
        if request.seq_id is not None:
            self._runner.end(request.seq_id, "cancelled")
        elif isinstance(request.message, wire.Generate | wire.Subscribe):
            request.scope.cancel()

    def cancel_all(self, *, only_subscriptions: bool = False) -> None:
        """End every request, as when the client has gone."""
        for request_id, request in list(self._requests.items()):
            if not only_subscriptions or isinstance(request.message, wire.Subscribe):
                self.cancel(request_id)

    def pause(self, request_id: int, paused: bool) -> None:  # a callback
        """Stop a sequence while its client does not read, or let it go on."""
        request = self._requests.get(request_id)
        if request is not None and request.seq_id is not None:
            self._runner.pause(request.seq_id, paused=paused)

    async def _run(self, request: Request) -> None:
        request_id = request.message.request_id
        try:
            with request.scope:
                await self._handle(request)
            if request.scope.cancelled_caught:
                self._answer_cancelled(request)
        except RequestError as err:
            self._fail(request_id, err)
        if request.seq_id is None:
            del self._requests[request_id]

    def _handle(self, request: Request) -> Awaitable[None]:
        match request.message:
            case wire.Generate() as message:
                return self._generate(request, message)
            case wire.Tokenize() as message:
                return self._tokenize(message)
            case wire.Detokenize() as message:
                return self._detokenize(message)
            case wire.Subscribe() as message:
                return self._subscribe(message)
            case wire.GetModel() as message:
                return self._get_model(message)
            case wire.GetStatus():
                raise AssertionError("answered at once")

    def _answer_cancelled(self, request: Request) -> None:
        """Answer a request that was cancelled before it had a sequence."""
        request_id = request.message.request_id
        match request.message:
            case wire.Generate():
                self._accept(request)
                self._outbox.put(wire.Finished(request_id, "cancelled"))
            case _:
                self._outbox.put(self._status(request_id, last=True))

    def _fail(self, request_id: int, err: RequestError) -> None:
        self._outbox.put(
            wire.Failed(request_id, err.code, str(err), err.retryable, details=err.details)
        )

    # --- generating ------------------------------------------------------------------------

    async def _generate(self, request: Request, message: wire.Generate) -> None:
        try:
            engine = await self._runner.loaded()
            prompt = await self._expand(engine, message.prompt)
            await request.turn.wait()  # the last chance for a cancel, too: now it is submitted
        finally:
            self._runner.leave_place()
            request.next_turn.set()
        request.seq_id = self._runner.submit(
            prompt, options_of(message), lambda emission: self._emit(request, message, emission)
        )
        self._accept(request)

    def _accept(self, request: Request) -> None:
        if not request.is_accepted:
            request.is_accepted = True
            runner, request_id = self._runner, request.message.request_id
            fraction = runner.load_fraction
            self._outbox.put(wire.Accepted(request_id, request.n_ahead, runner.health, fraction))

    def _emit(self, request: Request, message: wire.Generate, emission: Emission) -> None:
        """Pass on what a sequence has to say. Called by the runner: must not wait."""
        request_id, text = message.request_id, emission.text
        if emission.token is not None:
            request.n_unsent += 1
        wants_token = message.return_tokens
        if text or (wants_token and emission.token is not None):
            tokens = [emission.token] if wants_token and emission.token is not None else []
            request.n_text_bytes += len(text) if text.isascii() else len(text.encode())
            self._outbox.put(wire.Delta(request_id, text, request.n_unsent, tokens))
            request.n_unsent = 0
        if emission.ending is not None:
            del self._requests[request_id]
            self._end(request, emission)

    def _end(self, request: Request, emission: Emission) -> None:
        request_id, sequence = request.message.request_id, emission.sequence
        if isinstance(emission.ending, RequestError):
            self._fail(request_id, emission.ending)
            reason = emission.ending.code
        else:
            assert emission.ending is not None
            reason = emission.ending
            now = monotonic()
            answer = finished(request_id, sequence, emission.ending, request.n_text_bytes, now)
            self._outbox.put(answer)
        times = sequence.timings.summary(monotonic())
        log.info(
            "sequence.finished",
            seq_id=sequence.seq_id,
            reason=reason,
            n_prompt=sequence.n_prompt,
            n_cached=sequence.n_cached,
            n_generated=sequence.n_generated,
            queue_ms=round(times.queue_ms, 1),
            ttft_ms=round(times.ttft_ms, 1),
            itl_p50_ms=round(times.itl_p50_ms, 1),
            total_ms=round(times.total_ms, 1),
        )

    # --- everything else -------------------------------------------------------------------

    async def _expand(self, engine: Engine, prompt: wire.Prompt, *, add_bos: bool = True) -> Prompt:
        def expand() -> Prompt:
            return engine.expand(parts_of(prompt), add_bos=add_bos)

        return await self._aside(expand, size_of(prompt))

    async def _aside(self, function: Callable[[], T], size: int) -> T:
        """Run what would keep everybody waiting in a thread, one at a time."""
        if size <= INLINE_SIZE:
            return function()
        return await to_thread.run_sync(function, limiter=self._tokenizing)

    async def _tokenize(self, message: wire.Tokenize) -> None:
        engine = await self._runner.loaded()
        prompt = await self._expand(engine, message.prompt, add_bos=message.add_bos)
        self._outbox.put(wire.Tokens(message.request_id, list(prompt.inputs)))

    async def _detokenize(self, message: wire.Detokenize) -> None:
        engine = await self._runner.loaded()

        def text() -> str:
            checked = engine.expand([TokensPart(tuple(message.tokens))], add_bos=False)
            data = b"".join(engine.token_bytes(token) for token in checked.inputs)
            return data.decode("utf-8", "replace")

        answer = wire.Text(message.request_id, await self._aside(text, len(message.tokens)))
        self._outbox.put(answer)

    async def _get_model(self, message: wire.GetModel) -> None:
        self._outbox.put(model(message.request_id, await self._runner.loaded()))

    async def _subscribe(self, message: wire.Subscribe) -> None:
        while True:
            changed = self._runner.changed
            self._outbox.put(self._status(message.request_id, last=False))
            with anyio.move_on_after(message.interval_s):
                await changed.wait()

    def _status(self, request_id: int, *, last: bool) -> wire.Status:
        return status(request_id, self._runner, self._n_connections(), last=last)
