"""What comes of a sampled token: text, and maybe the end of the sequence."""

from dataclasses import dataclass
from typing import Protocol

from runnerd.core.batch import Sampled, SampleFault
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.errors import EngineFailed, RequestError


class Vocabulary(Protocol):
    """What the core needs to know of tokens."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation."""
        ...


@dataclass(frozen=True, slots=True)
class Emission:
    """What a sequence has to say: new text, a token, and at the end a reason or an error."""

    sequence: Sequence
    text: str
    token: int | None = None
    ending: FinishReason | RequestError | None = None


def take_up(
    sequence: Sequence, token: Sampled, vocabulary: Vocabulary, n_ctx: int, now: float
) -> Emission:
    """Take up what was sampled. An ending is noted in the sequence, for its owner to carry out.

    A reason noted before, from outside, stays the reason.
    """
    if isinstance(token, SampleFault):
        sequence.ending = sequence.ending or EngineFailed(token.message)
        return Emission(sequence, "")
    sequence.timings.token(now)
    if vocabulary.is_end(token):
        sequence.ending = sequence.ending or "stop"
        return Emission(sequence, "")
    sequence.inputs.append(token)
    sequence.n_generated += 1
    text = sequence.detokenizer.feed(vocabulary.token_bytes(token))
    sequence.ending = sequence.ending or _ending(sequence, n_ctx)
    return Emission(sequence, text, token)


def _ending(sequence: Sequence, n_ctx: int) -> FinishReason | None:
    if sequence.detokenizer.stopped_by is not None:
        return "stop_sequence"
    if sequence.n_generated == sequence.options.max_tokens:
        return "length"
    if len(sequence.inputs) > n_ctx and not sequence.options.shift:
        return "context"
    return None
