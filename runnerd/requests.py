"""One connection's requests in progress.

A handler that has to wait runs in a task of its own, under the request's scope, and answers
through the outbox. Each request ends in exactly one last answer, whatever happens to it.
"""

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from runnerd.core.emission import Emission
from runnerd.core.parts import check_tokens
from runnerd.core.prompt import Prompt
from runnerd.engine.base import Engine
from runnerd.errors import Overloaded, RequestError
from runnerd.outbox import Outbox
from runnerd.replies import (
    INLINE_SIZE,
    check_tokens_fit,
    failed,
    is_long,
    model,
    options_of,
    parts_of,
    status,
)
from runnerd.request import Request, RequestMessage, already
from runnerd.runner import Runner
from runnerd_protocol import messages as wire


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
        self._last_turn = already()

    def __len__(self) -> int:
        return len(self._requests)

    def start(self, message: RequestMessage) -> None:
        """Take a request up; never waits."""
        request_id = message.request_id
        if isinstance(message, wire.GetStatus):
            self._outbox.put(self._status(request_id, last=True))
        elif len(self._requests) >= self._n_most:
            err = Overloaded(
                f"connection has {len(self._requests)} requests in progress,"
                f" the limit is {self._n_most}",
                n_requests=len(self._requests),
                max_requests=self._n_most,
            )
            self._outbox.put(failed(request_id, err))
        elif isinstance(message, wire.Generate):
            self._start_generating(message)
        else:
            request = self._requests[request_id] = Request(message, self._runner, self._outbox)
            self._tasks.start_soon(self._run, request)

    def _start_generating(self, message: wire.Generate) -> None:
        try:
            n_ahead = self._runner.take_place()
        except RequestError as err:
            self._outbox.put(failed(message.request_id, err))
            return
        request = Request(message, self._runner, self._outbox, self._last_turn, n_ahead=n_ahead)
        self._last_turn = request.next_turn
        self._requests[message.request_id] = request
        if self._runner.engine is None:
            request.accept()
        self._tasks.start_soon(self._run, request)

    def cancel(self, request_id: int) -> None:
        """End a generation or subscription of this connection; the rest answers soon anyway."""
        request = self._requests.get(request_id)
        if request is not None and isinstance(request.message, wire.Generate | wire.Subscribe):
            self._cancel(request)

    def cancel_all(self, *, only_subscriptions: bool = False) -> None:
        """End every request, as when the client has gone: what is no stream stays unanswered."""
        for request in list(self._requests.values()):
            if not only_subscriptions or isinstance(request.message, wire.Subscribe):
                self._cancel(request)

    def _cancel(self, request: Request) -> None:
        if request.seq_id is not None:
            self._runner.end(request.seq_id, "cancelled")
        else:
            request.scope.cancel()

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
            request.fail(err)
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
                request.accept()
                self._outbox.put(wire.Finished(request_id, "cancelled"))
            case wire.Subscribe():
                self._outbox.put(self._status(request_id, last=True))
            case _:
                self._outbox.ring()  # no answer, but a writer that is to close waits for the end

    # --- generating ------------------------------------------------------------------------

    async def _generate(self, request: Request, message: wire.Generate) -> None:
        def expand(engine: Engine) -> Prompt:
            if not message.truncate:
                check_tokens_fit(message.prompt, engine.limits.n_ctx)
            return engine.expand(parts_of(message.prompt))

        try:
            prompt = await self._runner.read_vocabulary(expand, is_long=is_long(message.prompt))
            await request.turn.wait()  # the last chance for a cancel, too: now it is submitted
        finally:
            self._runner.leave_place()
            request.next_turn.set()
        listener = partial(self._emit, request, message)
        request.seq_id = self._runner.submit(prompt, options_of(message), listener)
        request.accept()

    def _emit(self, request: Request, message: wire.Generate, emission: Emission) -> None:
        if emission.ending is not None:
            del self._requests[message.request_id]
        request.emit(emission, wants_token=message.return_tokens)

    # --- everything else -------------------------------------------------------------------

    async def _tokenize(self, message: wire.Tokenize) -> None:
        def expand(engine: Engine) -> list[int]:
            return list(engine.expand(parts_of(message.prompt), add_bos=message.add_bos).inputs)

        tokens = await self._runner.read_vocabulary(expand, is_long=is_long(message.prompt))
        self._outbox.put(wire.Tokens(message.request_id, tokens))

    async def _detokenize(self, message: wire.Detokenize) -> None:
        def join(engine: Engine) -> str:
            check_tokens(message.tokens, engine.model.n_vocab, "tokens")
            data = b"".join(map(engine.token_bytes, message.tokens))
            return data.decode("utf-8", "replace")

        has_many = len(message.tokens) > INLINE_SIZE
        text = await self._runner.read_vocabulary(join, is_long=has_many)
        self._outbox.put(wire.Text(message.request_id, text))

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
