"""One prompt being completed.

`inputs` are the prompt's inputs and the tokens sampled so far; the slot's cells hold the
first `n_past` of them. While it generates, exactly one is not cached: the last token.
"""

from dataclasses import dataclass, field
from typing import Literal

from runnerd.core.backlog import Backlog
from runnerd.core.batch import Adapters, Limits, Sampling
from runnerd.core.detokenizer import Detokenizer
from runnerd.core.prompt import Layout, Prompt, keep_stop, truncate
from runnerd.core.slots import CacheKey, Lease, Slot
from runnerd.core.timings import Timings
from runnerd.errors import InvalidRequest, PromptTooLong, RequestError

FinishReason = Literal["stop", "stop_sequence", "length", "context", "timeout", "cancelled"]
Priority = Literal["high", "normal", "low"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a request asks for besides its prompt; fields as in the wire's `Generate`."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    n_keep: int = 0
    truncate: bool = False
    shift: bool = False
    adapters: Adapters = ()
    cache_scope: str = ""
    priority: Priority = "normal"
    wants_progress: bool = False

    @property
    def cache_key(self) -> CacheKey:
        """What two requests have in common that may share cached prefixes."""
        return self.cache_scope, self.adapters

    @property
    def needs_backlog(self) -> bool:
        """Whether it matters which tokens are in the text that is out."""
        return bool(self.stops) or self.sampling.n_logprobs is not None


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's state in the scheduler.

    `n_prompt` counts what the client sent. `last_step` is the step that served it last, or the
    one before it got its slot. `suspended_at` says how often cells had been freed when this one
    lost its own; `ending` why it is to end, as soon as no step holds it.

    `n_processed` is the most inputs of its prompt that the client was told are cached, -1 before
    the first word on that. `backlog` has the tokens whose text is not out yet, where it matters.
    `n_seen` says how many inputs the client saw, where a stop string cut off some.

    Steps stop at the `halts` of a sequence, ascending, for a checkpoint. One that `follows`
    another takes part in no step until that one has the first `n_awaited` inputs cached. It
    `is_fresh` until a step has evaluated something for it. One that `is_doubted` starts over, and
    runs alone until it is given a token: it or another has made what is no number.
    """

    seq_id: int
    options: Options
    inputs: list[int]
    layout: Layout
    detokenizer: Detokenizer
    timings: Timings
    n_prompt: int
    n_keep: int
    n_truncated: int = 0
    n_cached: int = 0
    n_generated: int = 0
    n_shifts: int = 0
    n_shifted: int = 0
    lease: Lease | None = None
    last_step: int = 0
    paused: bool = False
    ending: FinishReason | RequestError | None = None
    suspended_at: int | None = None
    n_processed: int = -1
    backlog: Backlog | None = None
    n_seen: int | None = None
    n_suspended: int = 0
    borders: tuple[int, ...] = ()
    halts: list[int] = field(default_factory=list)
    follows: "Sequence | None" = None
    n_awaited: int = 0
    is_fresh: bool = True
    is_doubted: bool = False

    @property
    def slot(self) -> Slot:
        """The slot that the sequence has leased."""
        assert self.lease is not None
        return self.lease.slot

    @property
    def slot_id(self) -> int:
        """The number of that slot."""
        assert self.lease is not None
        return self.lease.slot.slot_id

    @property
    def n_past(self) -> int:
        """Inputs held in the KV cache."""
        return self.lease.slot.n_past if self.lease is not None else 0

    @property
    def n_pending(self) -> int:
        """Inputs not cached yet."""
        n_inputs = len(self.inputs)
        return n_inputs - self.lease.slot.n_past if self.lease is not None else n_inputs

    @property
    def is_decoding(self) -> bool:
        """Whether all that is left to evaluate is the token just sampled."""
        if self.n_generated == 0 or self.lease is None:
            return False
        return len(self.inputs) - self.lease.slot.n_past == 1

    @property
    def wants_token(self) -> bool:
        """Whether to sample once every input is cached."""
        return self.options.max_tokens != 0

    def penalty_history(self) -> tuple[int, ...]:
        """Return the tokens that penalties look back on before the first is sampled."""
        n_history = self.options.sampling.n_history
        if n_history == 0:
            return ()
        return tuple(i for i in self.inputs[-n_history:] if i >= 0)


def admit(
    seq_id: int, prompt: Prompt, options: Options, limits: Limits, queued_at: float
) -> Sequence:
    """Make a sequence of a request, cutting its prompt if the request allows it.

    Raises:
        InvalidRequest: the prompt is empty, or a group can never fit into a step, nor into the
            context with what belongs to it.
        PromptTooLong: the prompt exceeds the context and may not, or cannot, be cut.
    """
    n_prompt = len(prompt.inputs)
    if n_prompt == 0:
        raise InvalidRequest("prompt", "empty", "at least one token")
    for group in prompt.groups:
        _check_group(group.lead + group.n_inputs + group.trail, limits.n_ctx, "n_ctx")
        if group.one_pass:
            name, n_most = ("n_ubatch", limits.n_ubatch)
            if limits.n_batch < n_most:
                name, n_most = ("n_batch", limits.n_batch)
            _check_group(group.n_inputs, n_most, name)
    n_keep = keep_stop(prompt.layout, n_prompt, options.n_keep, limits.n_ctx)
    if n_prompt > limits.n_ctx:
        if not options.truncate:
            raise PromptTooLong(
                f"prompt of {n_prompt} inputs, context holds {limits.n_ctx}",
                n_prompt=n_prompt,
                n_ctx=limits.n_ctx,
            )
        n_most = max(1, limits.n_ctx // 4)
        asked = n_most if options.max_tokens is None else options.max_tokens
        n_room = limits.n_ctx - min(max(asked, 1), n_most)
        n_keep = keep_stop(prompt.layout, n_prompt, n_keep, n_room)
        prompt = truncate(prompt, n_keep, n_room)
    return Sequence(
        seq_id=seq_id,
        options=options,
        inputs=list(prompt.inputs),
        layout=prompt.layout,
        detokenizer=Detokenizer(options.stops),
        timings=Timings(queued_at),
        n_prompt=n_prompt,
        n_keep=n_keep,
        n_truncated=n_prompt - len(prompt.inputs),
        borders=prompt.borders,
        backlog=Backlog() if options.needs_backlog else None,
    )


def _check_group(n_inputs: int, limit: int, name: str) -> None:
    if n_inputs > limit:
        raise InvalidRequest(
            "prompt", f"a group of {n_inputs} inputs", f"at most {limit} in one ({name})"
        )
