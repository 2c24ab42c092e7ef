"""What one sequence of a soak has said, and whether that can be true."""

from dataclasses import dataclass, field

from runnerd.core.batch import Logprobs
from runnerd.core.emission import Emission, Vocabulary
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.errors import RequestError
from tests.core.naive import text_before_stop
from tests.soak.asks import Ask


@dataclass(slots=True)
class Account:
    """Everything that one sequence said, in order. `asked` is how it was ended from outside."""

    ask: Ask
    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[Logprobs] = field(default_factory=list)
    progress: list[int] = field(default_factory=list)
    ending: FinishReason | RequestError | None = None
    asked: FinishReason | RequestError | None = None

    def hear(self, emission: Emission) -> None:
        """Take down what it says now."""
        assert self.ending is None, "spoke after its end"
        self.text += emission.text
        self.logprobs += emission.logprobs
        if emission.token is not None:
            self.tokens.append(emission.token)
        if emission.has_progressed:
            self.progress.append(self.sequence.n_processed)
        self.ending = emission.ending

    def check(self, vocabulary: Vocabulary, n_ctx: int) -> None:
        """Assert that what an ended sequence said fits together."""
        sequence, options = self.sequence, self.sequence.options
        data = b"".join(map(vocabulary.token_bytes, self.tokens))
        text, stop = text_before_stop(data, options.stops)
        assert self.text == text
        assert sequence.n_generated == len(self.tokens)
        assert 0 <= sequence.n_cached < sequence.n_prompt - sequence.n_truncated or self.asked
        n_inputs = sequence.n_prompt - sequence.n_truncated + len(self.tokens)
        assert len(sequence.inputs) == n_inputs - sequence.n_shifted
        if self.asked is not None:
            assert self.ending is self.asked, "ended otherwise than it was told"
        self._check_ending(stop, n_inputs, n_ctx)
        self._check_logprobs(vocabulary, stop)
        assert self.progress == sorted(set(self.progress)), "no progress"
        if self.progress:
            assert options.wants_progress

    def _check_ending(self, stop: str | None, n_inputs: int, n_ctx: int) -> None:
        options = self.sequence.options
        match self.ending:
            case "stop_sequence":
                assert stop is not None
                assert self.sequence.detokenizer.stopped_by == stop
            case "length":
                assert len(self.tokens) == options.max_tokens
            case "context":
                assert not options.shift
                assert n_inputs == n_ctx + 1
            case "stop":
                if self.ask.literal is not None:
                    assert self.text == self.ask.literal
        if self.ask.literal is not None and stop is None:
            assert self.ask.literal.encode().startswith(self.text.rstrip("\ufffd").encode())

    def _check_logprobs(self, vocabulary: Vocabulary, stop: str | None) -> None:
        wanted = self.sequence.options.sampling.n_logprobs
        if wanted is None:
            assert not self.logprobs
            return
        listed = [entry.token for entry in self.logprobs]
        assert listed == self.tokens[: len(listed)]
        if stop is None:
            assert listed == self.tokens
        else:
            data = b"".join(map(vocabulary.token_bytes, listed))
            assert self.text.encode().startswith(data) or "\ufffd" in self.text
        for entry in self.logprobs:
            values = [value for _, value in entry.top]
            assert len(values) <= wanted
            assert values == sorted(values, reverse=True)
            assert entry.logprob <= 1e-9
