"""The completions of one request: what each has to say, and the one last answer to all.

The decode loop calls `_hear` of each, which never waits. If one fails, the others fail with
it, before the request does.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic

import anyio
import structlog

from runnerd.core.emission import Emission
from runnerd.core.prompt import Prompt
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.core.timings import TimingSummary
from runnerd.errors import RequestError
from runnerd.options import N_SEEDS, options_of
from runnerd.outbox import Outbox, utf8_bytes
from runnerd.replies import choice, deltas, finished, progress
from runnerd.request_log import Number
from runnerd.runner import Runner
from runnerd_protocol import messages as wire

log = structlog.get_logger()

OnEnd = Callable[[wire.Finished | RequestError], None]
_Ending = tuple[Sequence, FinishReason | RequestError, int, TimingSummary]


@dataclass(slots=True, eq=False)
class _Completion:
    """One of them. `n_unsent` tokens were sampled since its last delta."""

    index: int
    seq_id: int = 0
    n_unsent: int = 0
    n_text_bytes: int = 0


class Completions:
    """The `n` completions of a request, from their submission to their end."""

    def __init__(
        self,
        message: wire.Generate,
        runner: Runner,
        outbox: Outbox,
        on_end: OnEnd,
        on_crash: Callable[[Exception], None],
    ) -> None:
        self.has_ended = anyio.Event()
        self.message = message
        self._seed = secrets.randbelow(N_SEEDS) if message.seed is None else message.seed
        self._runner = runner
        self._outbox = outbox
        self._on_end = on_end
        self._on_crash = on_crash
        self._is_abandoned = False
        self._all: list[_Completion] = []
        self._endings: dict[int, _Ending] = {}

    @property
    def are_submitted(self) -> bool:
        """Whether there are sequences that will have an end."""
        return bool(self._all)

    @property
    def numbers(self) -> dict[str, Number]:
        """What they have taken, those that have ended; times are those of the first."""
        numbers: dict[str, Number] = {"n": self.message.n}
        if self._endings:
            sequences = [sequence for sequence, *_ in self._endings.values()]
            first, _, _, times = self._endings[min(self._endings)]
            numbers |= {
                "n_prompt": first.n_prompt,
                "n_cached": sum(each.n_cached for each in sequences),
                "n_generated": sum(each.n_generated for each in sequences),
                "queue_ms": times.queue_ms,
                "ttft_ms": times.ttft_ms,
                "itl_p50_ms": times.itl_p50_ms,
            }
        return numbers

    def submit(self, prompt: Prompt, constraint: object | None, queued_at: float) -> None:
        """Queue them all, each with a seed of its own.

        Raises:
            RequestError: they cannot be served; none is queued.
        """
        for index in range(self.message.n):  # what refuses one of them refuses the first
            completion = _Completion(index)
            completion.seq_id = self._runner.submit(
                prompt,
                options_of(self.message, self._seed, index, constraint),
                partial(self._hear, completion),
                queued_at,
                self.message.request_id,
            )
            self._all.append(completion)

    def end(self, ending: FinishReason | RequestError) -> None:
        """End them from outside: amid a step at the next commit."""
        for completion in self._all:  # those that have ended are left alone
            self._runner.end(completion.seq_id, ending)

    def abandon(self, error: RequestError) -> None:
        """End them, and say nothing more of any: somebody else does."""
        self._is_abandoned = True
        self.has_ended.set()
        self.end(error)

    def pause(self, *, paused: bool) -> None:
        """Generate nothing while the client does not read, or go on."""
        for completion in self._all:
            self._runner.pause(completion.seq_id, paused=paused)

    def n_ahead(self) -> int | None:
        """Return how many wait before the first of them; None if one has begun, or has ended."""
        places = [self._runner.n_ahead(completion.seq_id) for completion in self._all]
        return None if None in places else places[0]

    def _hear(self, completion: _Completion, emission: Emission) -> None:
        """Pass on what one of them has to say; if that fails, their request ends alone."""
        if self._is_abandoned:
            return
        try:
            self._pass_on(completion, emission)
        except Exception as err:
            self._on_crash(err)

    def _pass_on(self, completion: _Completion, emission: Emission) -> None:
        token, text, logprobs = emission.token, emission.text, emission.logprobs
        message, outbox, index = self.message, self._outbox, completion.index
        if emission.has_progressed:
            outbox.put(progress(message.request_id, index, emission.sequence))
        completion.n_unsent += token is not None
        tokens = [token] if token is not None and message.return_tokens else []
        if text or tokens or logprobs:
            completion.n_text_bytes += utf8_bytes(text)
            delta = wire.Delta(message.request_id, text, completion.n_unsent, tokens, index)
            completion.n_unsent = 0
            told = deltas(delta, logprobs, self._runner.token_bytes) if logprobs else (delta,)
            for each in told:
                outbox.put(each)
        if emission.ending is not None:
            self._end(completion, emission.sequence, emission.ending)

    def _end(
        self, completion: _Completion, sequence: Sequence, ending: FinishReason | RequestError
    ) -> None:
        times = sequence.timings.summary(monotonic())
        self._endings[completion.index] = sequence, ending, completion.n_text_bytes, times
        log.debug("sequence.finished", seq_id=sequence.seq_id, n_generated=sequence.n_generated)
        is_last = len(self._endings) == self.message.n
        if isinstance(ending, RequestError) and not is_last:
            self.end(ending)  # may end all of them here and now, and so come back here
        if is_last:
            self._on_end(self._last_answer())
            self.has_ended.set()

    def cancelled_unbegun(self, waited_s: float) -> wire.Finished:
        """Return the last answer to a request that was cancelled before `submit`."""
        times = wire.Timings(queue_ms=round(waited_s * 1e3, 3), total_ms=round(waited_s * 1e3, 3))
        choices = [
            wire.Choice("cancelled", seed=(self._seed + index) % N_SEEDS, timings=times)
            for index in range(self.message.n)
        ]
        return wire.Finished(
            self.message.request_id,
            "cancelled",
            seed=self._seed,
            timings=times,
            choices=choices if len(choices) > 1 else [],
        )

    def _last_answer(self) -> wire.Finished | RequestError:
        choices = []
        for _, (sequence, ending, n_text_bytes, times) in sorted(self._endings.items()):
            if isinstance(ending, RequestError):
                return ending
            choices.append(choice(sequence, ending, n_text_bytes, times))
        return finished(self.message.request_id, self._endings[0][0], choices)
