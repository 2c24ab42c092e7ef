"""What comes of sampled tokens: log-probabilities with their text, and what the client saw."""

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runnerd.core.batch import Logprobs, Sampling
from runnerd.core.emission import ENDLESS_CONTEXTS, Emission, last_word, take_up
from runnerd.core.sequence import Sequence
from tests.core.naive import text_before_stop
from tests.helpers import END, endings, make_batcher, make_sequence, run_all, run_step, text_of

WITH_LOGPROBS = Sampling(n_logprobs=1)
N_CTX = 10_000


class PieceVocabulary:
    """Token n adds the bytes of the n-th piece; token 0 ends."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = [b"", *pieces]

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def is_end(self, token: int) -> bool:
        return token == END


def say(
    pieces: list[bytes], stops: tuple[str, ...] = (), *, end: bool = False
) -> tuple[list[Emission], Sequence]:
    """Sample a token for each piece until a stop string; return all that was said."""
    vocabulary = PieceVocabulary(pieces)
    sequence = make_sequence(1, [7, 7], stops=stops, sampling=WITH_LOGPROBS)
    said: list[Emission] = []
    for token in [*range(1, len(pieces) + 1), *[END] * end]:
        said.append(take_up(sequence, Logprobs(token, -token / 8), vocabulary, N_CTX, 0.0))
        if sequence.ending is not None:
            break
    return [*said, last_word(sequence, sequence.ending or "length")], sequence


def listed(said: list[Emission]) -> list[int]:
    return [entry.token for emission in said for entry in emission.logprobs]


def test_an_entry_comes_with_its_token_where_nothing_is_held_back() -> None:
    said, _ = say([b"a", b"bc", "é".encode()])
    assert [(e.text, [p.token for p in e.logprobs]) for e in said] == [
        ("a", [1]),
        ("bc", [2]),
        ("é", [3]),
        ("", []),
    ]
    assert said[0].logprobs[0] == Logprobs(1, -1 / 8)


def test_entries_of_a_character_in_pieces_come_with_the_character() -> None:
    first, second, third = (bytes([byte]) for byte in "あ".encode())
    said, _ = say([b"a" + first, second, third + b"b", b"c"])
    assert [[p.token for p in e.logprobs] for e in said] == [[], [], [1, 2, 3], [4], []]


def test_entries_wait_with_the_text_that_may_become_a_stop_string() -> None:
    said, _ = say([b"x<", b"E", b"N", b"? "], ("<END>",))
    assert [e.text for e in said] == ["x", "", "", "<EN? ", ""]
    assert [[p.token for p in e.logprobs] for e in said] == [[], [], [], [1, 2, 3, 4], []]


def test_tokens_that_a_stop_string_cuts_off_are_never_listed() -> None:
    said, sequence = say([b"ab", b"c<", b"EN", b"D>d"], ("<END>",))
    assert "".join(e.text for e in said) == "abc"
    assert listed(said) == [1]
    assert sequence.n_seen == 2 + 1


def test_the_end_token_is_not_listed_and_what_is_held_comes_out() -> None:
    said, sequence = say([b"a", b"<", b"E"], ("<END>",), end=True)
    assert listed(said[:-1]) == [1]
    assert (said[-1].text, listed(said[-1:])) == ("<E", [2, 3])
    assert sequence.n_seen is None


def test_a_token_without_text_is_listed_in_its_place() -> None:
    said, _ = say([b"", b"a", b"", b"<END>"], ("<END>",))
    assert listed(said) == [1, 2, 3]


pieces = st.lists(
    st.one_of(
        st.sampled_from([b"", b"a", b"b", b"ab", b"\xe3", b"\x81", b"\x82", b"a\xe3\x81"]),
        st.binary(max_size=4),
    ),
    max_size=12,
)
stop_strings = st.lists(st.text("abあ�", min_size=1, max_size=4), max_size=3).map(tuple)


@given(pieces, stop_strings)
@example([b"\xe3", b"\x81", b"a"], ("�",))
@example([b"\xf0\x9f", b"\x98", b"\xf0"], ())
def test_exactly_the_tokens_are_listed_and_seen_that_lie_in_the_text(
    said_pieces: list[bytes], stops: tuple[str, ...]
) -> None:
    said, sequence = say(said_pieces, stops)
    text, stop = text_before_stop(b"".join(said_pieces), stops)
    assert "".join(emission.text for emission in said) == text
    lengths = [
        len(b"".join(said_pieces[:n]).decode("utf-8", "replace"))
        for n in range(len(said_pieces) + 1)
    ]
    n_whole = max(n for n, n_chars in enumerate(lengths) if stop is None or n_chars <= len(text))
    assert listed(said) == list(range(1, n_whole + 1))
    if stop is not None:
        assert sequence.n_seen == 2 + n_whole


@given(pieces, stop_strings)
def test_an_entry_is_told_as_soon_as_its_text_is_out_and_not_before(
    said_pieces: list[bytes], stops: tuple[str, ...]
) -> None:
    said, sequence = say(said_pieces, stops)
    if sequence.detokenizer.stopped_by is not None:
        return
    whole = b"".join(said_pieces).decode("utf-8", "replace")
    out, n_listed = "", 0
    for emission in said:
        out += emission.text
        n_listed += len(emission.logprobs)
        told = b"".join(said_pieces[:n_listed]).decode("utf-8", "replace")
        assert len(told) <= len(out)
        assert whole.startswith(out)


def test_without_stops_or_logprobs_nothing_is_kept_back() -> None:
    assert make_sequence(1, [1]).backlog is None
    assert make_sequence(1, [1], stops=("a",)).backlog is not None


def test_logprobs_reach_the_emissions_of_a_batcher() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, [1, 2], max_tokens=3, sampling=WITH_LOGPROBS))
    said: list[Emission] = []
    for token in (65, 66, 67):
        said += run_step(batcher, token=Logprobs(token, -1.0))[1]
    assert text_of(said, 1) == "ABC"
    assert listed(said) == [65, 66, 67]


# --- the end of what would never end ------------------------------------------------------------


@pytest.mark.parametrize("n_slots", [1, 3])
def test_a_request_without_a_limit_that_shifts_ends_by_length_at_the_documented_cap(
    n_slots: int,
) -> None:
    batcher = make_batcher(n_slots=n_slots, n_ctx=16)
    for seq_id in range(n_slots + 1):
        batcher.submit(make_sequence(seq_id, [1, 2, seq_id], limits=batcher.limits, shift=True))
    said = run_all(batcher, n_most=3 * batcher.n_generated_limit)
    assert endings(said) == dict.fromkeys(range(n_slots + 1), "length")
    assert batcher.n_generated_limit == ENDLESS_CONTEXTS * 16
    for seq_id in range(n_slots + 1):
        assert text_of(said, seq_id) == "A" * batcher.n_generated_limit


def test_a_limit_above_the_cap_is_kept() -> None:
    batcher = make_batcher(n_ctx=16)
    n_tokens = batcher.n_generated_limit + 5
    limits = batcher.limits
    batcher.submit(make_sequence(1, [1, 2], limits=limits, max_tokens=n_tokens, shift=True))
    assert text_of(run_all(batcher, n_most=2 * n_tokens), 1) == "A" * n_tokens
