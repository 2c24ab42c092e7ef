"""One request in progress, and what it tells its client: exactly one last answer in the end."""

from dataclasses import dataclass, field
from time import monotonic

import anyio
import structlog

from runnerd.core.emission import Emission
from runnerd.errors import RequestError
from runnerd.outbox import Outbox
from runnerd.replies import failed, finished
from runnerd.runner import Runner
from runnerd_protocol import messages as wire

log = structlog.get_logger()

RequestMessage = (
    wire.Generate
    | wire.Tokenize
    | wire.Detokenize
    | wire.GetStatus
    | wire.Subscribe
    | wire.GetModel
)


def already() -> anyio.Event:
    """Return an event that has happened."""
    event = anyio.Event()
    event.set()
    return event


@dataclass(slots=True, eq=False)
class Request:
    """A request and its answers. `n_unsent` tokens were sampled since the last delta.

    `turn` is set when the generation before it is submitted, or will not be; `next_turn` when
    it is itself. Tasks start in any order on trio, and texts take their time.
    """

    message: RequestMessage
    runner: Runner
    outbox: Outbox
    turn: anyio.Event = field(default_factory=already)
    next_turn: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    n_ahead: int = 0
    seq_id: int | None = None
    is_accepted: bool = False
    n_unsent: int = 0
    n_text_bytes: int = 0

    def accept(self) -> None:
        """Say that a generation is taken; the second time nothing."""
        if not self.is_accepted:
            self.is_accepted = True
            runner, request_id = self.runner, self.message.request_id
            runner.figures.n_requests += 1
            fraction = runner.load_fraction
            self.outbox.put(wire.Accepted(request_id, self.n_ahead, runner.health, fraction))

    def fail(self, err: RequestError) -> None:
        """Say why the request cannot be served."""
        self.runner.figures.n_failed += self.is_accepted
        self.outbox.put(failed(self.message.request_id, err))

    def emit(self, emission: Emission, *, wants_token: bool) -> None:
        """Pass on what a sequence has to say. Called by the runner: must not wait."""
        text, token = emission.text, emission.token
        if token is not None:
            self.n_unsent += 1
        if text or (wants_token and token is not None):
            tokens = [token] if wants_token and token is not None else []
            self.n_text_bytes += len(text) if text.isascii() else len(text.encode())
            self.outbox.put(wire.Delta(self.message.request_id, text, self.n_unsent, tokens))
            self.n_unsent = 0
        if emission.ending is not None:
            self._end(emission)

    def _end(self, emission: Emission) -> None:
        sequence, ending = emission.sequence, emission.ending
        assert ending is not None
        times = sequence.timings.summary(monotonic())
        if isinstance(ending, RequestError):
            self.fail(ending)
        else:
            request_id, n_text_bytes = self.message.request_id, self.n_text_bytes
            self.outbox.put(finished(request_id, sequence, ending, n_text_bytes, times))
        log.info(
            "sequence.finished",
            seq_id=sequence.seq_id,
            reason=ending.code if isinstance(ending, RequestError) else ending,
            n_prompt=sequence.n_prompt,
            n_cached=sequence.n_cached,
            n_generated=sequence.n_generated,
            queue_ms=round(times.queue_ms, 1),
            ttft_ms=round(times.ttft_ms, 1),
            itl_p50_ms=round(times.itl_p50_ms, 1),
            total_ms=round(times.total_ms, 1),
        )
