"""What the daemon says of a token and its likeliest rivals."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runnerd.core.batch import Logprobs
from runnerd.replies import ENTRIES_PER_DELTA, deltas
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import Delta, TokenLogprobs, TopLogprob


def bytes_of(token: int) -> bytes:
    return bytes([token % 256])


def test_a_delta_without_log_probabilities_is_sent_as_it_is() -> None:
    delta = Delta(1, "a", 2, [5], 3)
    assert list(deltas(delta, [], bytes_of)) == [delta]


def test_log_probabilities_are_told_with_the_bytes_of_their_tokens() -> None:
    (told,) = deltas(Delta(1, "A"), [Logprobs(65, -0.5, ((66, -0.25), (65, -0.5)))], bytes_of)
    top = [TopLogprob(66, -0.25, b"B"), TopLogprob(65, -0.5, b"A")]
    assert told == Delta(1, "A", logprobs=[TokenLogprobs(65, -0.5, b"A", top)])


@settings(deadline=None, max_examples=30)
@given(n_tokens=st.integers(1, 3000), n_top=st.sampled_from([0, 1, 20, 100]))
def test_many_log_probabilities_are_told_in_order_in_messages_of_a_bounded_size(
    n_tokens: int, n_top: int
) -> None:
    top = tuple((token, -1.0) for token in range(n_top))
    picked = [Logprobs(token, -2.0, top) for token in range(n_tokens)]
    told = list(deltas(Delta(1, "text", 9, [1], 2), picked, bytes_of))
    assert [each.text for each in told] == ["text"] + [""] * (len(told) - 1)
    assert [each.n_tokens for each in told] == [9] + [0] * (len(told) - 1)
    assert {each.index for each in told} == {2}
    assert [each.token for delta in told for each in delta.logprobs] == list(range(n_tokens))
    for delta in told:
        assert delta.logprobs
        assert len(delta.logprobs) * (1 + n_top) <= max(ENTRIES_PER_DELTA, 1 + n_top)
        assert len(encode_frame(delta)) < 2**18
