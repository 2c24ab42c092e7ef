"""What comes of a step for a sequence: text, progress, and maybe the end."""

from typing import Protocol

from msgspec import Struct

from runnerd.core.batch import Logprobs, Sampled, SampleFault
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.errors import EngineFailed, RequestError

ENDLESS_CONTEXTS = 16  # contexts' worth of tokens that a request without an end may generate


class Vocabulary(Protocol):
    """What the core needs to know of tokens."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        ...


class Emission(Struct, frozen=True):
    """What a sequence has to say: new text, a token, and at the end a reason or an error.

    `logprobs` are those of the tokens whose text is now out. `has_progressed`: more of the
    prompt is in the cache, `sequence.n_processed` inputs, and the request wants to know.
    """

    sequence: Sequence
    text: str
    token: int | None = None
    ending: FinishReason | RequestError | None = None
    logprobs: tuple[Logprobs, ...] = ()
    has_progressed: bool = False


def n_generated_limit(n_ctx: int) -> int:
    """Return how many tokens a request gets that sets no limit, and shifts for ever."""
    return ENDLESS_CONTEXTS * n_ctx


def progress(sequence: Sequence) -> list[Emission]:
    """Return word of how far a prompt is, if that is wanted and further than was told."""
    if not sequence.options.wants_progress or sequence.n_generated > 0:
        return []
    if sequence.n_past <= sequence.n_processed:
        return []
    sequence.n_processed = sequence.n_past
    return [Emission(sequence, "", has_progressed=True)]


def take_up(
    sequence: Sequence, sampled: Sampled, vocabulary: Vocabulary, n_ctx: int, now: float
) -> Emission:
    """Take up what was sampled. An ending is noted in the sequence, for its owner to carry out.

    A reason noted before, from outside, stays the reason. A row of no numbers may be another's
    fault (`core/doubt.py`): it ends its sequence where that was doubted, and so ran alone.
    """
    if isinstance(sampled, SampleFault):
        if sampled.spoils_slot and not sequence.is_doubted:
            sequence.is_doubted = True
        else:
            sequence.ending = sequence.ending or EngineFailed(sampled.message)
        return Emission(sequence, "")
    sequence.is_doubted = False
    logprobs = sampled if isinstance(sampled, Logprobs) else None
    token = sampled if isinstance(sampled, int) else sampled.token
    sequence.timings.token(now)
    if vocabulary.is_end(token):
        sequence.ending = sequence.ending or "stop"
        return Emission(sequence, "")
    sequence.inputs.append(token)
    sequence.n_generated += 1
    text = sequence.detokenizer.feed(vocabulary.token_bytes(token))
    sequence.ending = sequence.ending or _ending(sequence, n_ctx)
    if sequence.backlog is None:
        return Emission(sequence, text, token)
    told = sequence.backlog.take(sequence.detokenizer, logprobs)
    return Emission(sequence, text, token, logprobs=told)


def last_word(sequence: Sequence, ending: FinishReason | RequestError) -> Emission:
    """End a sequence's text: what was held back comes out, but not what a stop cut off."""
    detokenizer, backlog = sequence.detokenizer, sequence.backlog
    text = detokenizer.finish()
    sequence.ending = ending
    if backlog is None:
        return Emission(sequence, text, ending=ending)
    told = backlog.release(detokenizer.n_out)
    if detokenizer.stopped_by is not None:
        # A shift may have dropped some of the tokens cut off; what it kept was seen.
        sequence.n_seen = max(len(sequence.inputs) - len(backlog), sequence.n_keep)
    return Emission(sequence, text, ending=ending, logprobs=told)


def _ending(sequence: Sequence, n_ctx: int) -> FinishReason | None:
    options = sequence.options
    if sequence.detokenizer.stopped_by is not None:
        return "stop_sequence"
    if sequence.n_generated == options.max_tokens:
        return "length"
    if not options.shift:
        return "context" if len(sequence.inputs) > n_ctx else None
    is_endless = options.max_tokens is None and sequence.n_generated >= n_generated_limit(n_ctx)
    return "length" if is_endless else None
