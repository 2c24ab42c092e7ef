"""What a finished generation comes to: each completion's text, and how it went."""

from collections.abc import Iterable
from dataclasses import dataclass

from runnerd_protocol.messages import Choice, Delta, Finished, TokenLogprobs


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """One completion of the prompt. `logprobs` are of its text's tokens, if asked for."""

    text: str
    summary: Choice
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished generation: the text of its first completion, how it went, and all of them."""

    text: str
    finished: Finished
    choices: tuple[CompletionChoice, ...] = ()

    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the tokens of `text`, if asked for."""
        return self.choices[0].logprobs if self.choices else ()


def completion_of(deltas: Iterable[Delta], finished: Finished) -> Completion:
    """Return what a generation's deltas and its end come to."""
    texts: dict[int, list[str]] = {}
    logprobs: dict[int, list[TokenLogprobs]] = {}
    for delta in deltas:
        texts.setdefault(delta.index, []).append(delta.text)
        logprobs.setdefault(delta.index, []).extend(delta.logprobs)
    choices = tuple(
        CompletionChoice("".join(texts.get(index, ())), summary, tuple(logprobs.get(index, ())))
        for index, summary in enumerate(finished.choices or [_only_choice(finished)])
    )
    return Completion(choices[0].text, finished, choices)


def _only_choice(finished: Finished) -> Choice:
    return Choice(
        reason=finished.reason,
        stop_sequence=finished.stop_sequence,
        n_cached=finished.n_cached,
        n_generated=finished.n_generated,
        n_text_bytes=finished.n_text_bytes,
        n_shifts=finished.n_shifts,
        n_shifted=finished.n_shifted,
        n_suspended=finished.n_suspended,
        seed=finished.seed,
        timings=finished.timings,
    )
