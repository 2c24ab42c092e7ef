"""What a sequence has said from its start to its end, against what was sampled for it."""

from runnerd.core.batch import Limits, Logprobs, Sampled
from runnerd.core.emission import Emission, n_generated_limit
from runnerd.core.sequence import FinishReason, Sequence
from runnerd.errors import RequestError
from tests.core.naive import text_before_stop
from tests.helpers import END

Said = tuple[int, str, int | None, str | None, tuple[Logprobs, ...], int | None]


def as_said(emission: Emission) -> Said:
    """Return all that an emission says, as it says it now."""
    sequence = emission.sequence
    ending = None if emission.ending is None else repr(emission.ending)
    n_processed = sequence.n_processed if emission.has_progressed else None
    said = (sequence.seq_id, emission.text, emission.token, ending, emission.logprobs)
    return (*said, n_processed)


class Speech:
    """One sequence's tokens as they were sampled, and what was heard of it."""

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.n_processed: list[int] = []
        self._sampled: list[Sampled] = []
        self._tokens: list[int] = []
        self._text = ""
        self._listed: list[Logprobs] = []

    @property
    def n_prompt(self) -> int:
        """Inputs of the prompt, as it was cut."""
        return self.sequence.n_prompt - self.sequence.n_truncated

    def sample(self, sampled: Sampled) -> Sampled:
        """Note a sample, with log-probabilities if these are wanted, and return it."""
        n_logprobs = self.sequence.options.sampling.n_logprobs
        if isinstance(sampled, int) and n_logprobs is not None:
            sampled = Logprobs(sampled, -float(len(self._sampled)))
        self._sampled.append(sampled)
        return sampled

    def hear(self, emission: Emission) -> None:
        """Take in an emission."""
        if emission.has_progressed:
            assert (emission.text, emission.token, emission.ending) == ("", None, None)
            assert self.sequence.options.wants_progress
            assert not self._tokens, "progress after the first token"
            self.n_processed.append(self.sequence.n_processed)
        if emission.token is not None:
            self._tokens.append(emission.token)
            self._check_progress()
        self._text += emission.text
        self._listed += emission.logprobs

    def _check_progress(self) -> None:
        """Assert that progress rose to the whole prompt, if it was wanted."""
        if self.sequence.options.wants_progress:
            assert self.n_processed == sorted(set(self.n_processed))
            assert self.n_processed[-1] == self.n_prompt

    def check_ended(self, ending: FinishReason | RequestError, limits: Limits) -> None:
        """Assert that all was said, and that the reason is the right one."""
        sequence, options = self.sequence, self.sequence.options
        ids = [s.token if isinstance(s, Logprobs) else s for s in self._sampled]
        tokens = [token for token in ids if isinstance(token, int) and token != END]
        assert self._tokens == tokens
        data = bytes(token % 256 for token in tokens)
        text, stop = text_before_stop(data, options.stops)
        assert self._text == text
        assert (stop is not None) == (sequence.detokenizer.stopped_by is not None)
        n_inputs = self.n_prompt + len(tokens)
        assert len(sequence.inputs) == n_inputs - sequence.n_shifted
        assert sequence.n_generated == len(tokens)
        self._check_seen(data, text, stop)
        match ending:
            case "stop":
                assert ids[-1] == END
            case "stop_sequence":
                assert sequence.detokenizer.stopped_by == stop is not None
            case "length" if options.max_tokens is None:
                assert options.shift
                assert len(tokens) == n_generated_limit(limits.n_ctx)
            case "length":
                assert len(tokens) == options.max_tokens
                self._check_progress()
            case "context":
                assert not options.shift
                assert n_inputs == limits.n_ctx + 1
            case "timeout" | "cancelled" | RequestError():
                pass

    def _check_seen(self, data: bytes, text: str, stop: str | None) -> None:
        """Assert that exactly the tokens are listed, and taken as seen, that lie in the text."""
        n_seen = n_whole = len(data)
        if stop is not None:
            lengths = [len(data[:n].decode("utf-8", "replace")) for n in range(len(data) + 1)]
            n_whole = max(n for n in range(len(data) + 1) if lengths[n] <= len(text))
        sequence = self.sequence
        n_cut = n_seen - n_whole
        expected = None if stop is None else max(len(sequence.inputs) - n_cut, sequence.n_keep)
        assert sequence.n_seen == expected
        if sequence.options.sampling.n_logprobs is not None:
            listed = [s for s in self._sampled if isinstance(s, Logprobs) and s.token != END]
            assert self._listed == listed[:n_whole]
        else:
            assert not self._listed
