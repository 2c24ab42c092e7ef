"""Bytes in, text out: against decoding everything at once."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runnerd.core.detokenizer import Detokenizer
from tests.core.naive import text_before_stop

alphabet = st.sampled_from([b"a", b"b", b"c", "あ".encode(), "é".encode(), "👩".encode()])
stop_strings = st.lists(st.text("abcあé�", min_size=1, max_size=5), max_size=4)
odd_bytes = st.lists(st.one_of(alphabet, st.binary(max_size=3)), max_size=12).map(b"".join)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Return the data in pieces that end at these places."""
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(ends)]


def feed_all(detokenizer: Detokenizer, pieces: list[bytes]) -> list[str]:
    """Feed pieces until a stop, then finish; return what came of each, the rest last."""
    chunks: list[str] = []
    for piece in pieces:
        chunks.append(detokenizer.feed(piece))
        if detokenizer.stopped_by is not None:
            break
    return [*chunks, detokenizer.finish()]


def one_by_one(text: str, *stops: str) -> tuple[list[str], str | None]:
    """Feed a text byte by byte; return the chunks and the stop string."""
    detokenizer = Detokenizer(stops)
    chunks = feed_all(detokenizer, [bytes([byte]) for byte in text.encode()])
    return chunks, detokenizer.stopped_by


@given(odd_bytes, stop_strings, st.lists(st.integers(0, 40), max_size=12))
@example(b"\xff", [], [])
@example(b"\xe3\x81", [], [1])
@example(b"a\xe3\x81", ["�"], [2])
@example(b"abcd", ["bc", "abcd"], [3])
@example(b"abab", ["ab", "abab"], [])
def test_any_bytes_in_any_pieces_give_the_text_before_the_stop(
    data: bytes, stops: list[str], places: list[int]
) -> None:
    detokenizer = Detokenizer(stops)
    chunks = feed_all(detokenizer, cut(data, places))
    assert ("".join(chunks), detokenizer.stopped_by) == text_before_stop(data, stops)


@given(st.lists(alphabet, max_size=20).map(b"".join), stop_strings)
def test_only_what_may_become_a_stop_is_held_back(data: bytes, stops: list[str]) -> None:
    detokenizer = Detokenizer(stops)
    given_out = ""
    for end in range(1, len(data) + 1):
        given_out += detokenizer.feed(data[end - 1 : end])
        if detokenizer.stopped_by is not None:
            return
        text = data[:end].decode("utf-8", "ignore")
        starts = [
            at for at in range(len(text)) if any(stop.startswith(text[at:]) for stop in stops)
        ]
        held = len(text) - min(starts, default=len(text))
        assert given_out == text[: len(text) - held]
        assert held <= max((len(stop) - 1 for stop in stops), default=0)


@pytest.mark.parametrize(
    "text", ["日本語テスト", "👩‍👩‍👧‍👦", "e\N{COMBINING ACUTE ACCENT}", "🇩🇪 und é"]
)
def test_a_character_comes_when_its_last_byte_does(text: str) -> None:
    chunks, _ = one_by_one(text)
    assert "".join(chunks) == text
    assert "�" not in "".join(chunks)
    assert all(len(chunk) <= 1 for chunk in chunks)


@pytest.mark.parametrize("n_bytes", range(13))
def test_an_incomplete_character_at_the_end_becomes_one_replacement(n_bytes: int) -> None:
    data = "日本a👩é".encode()[:n_bytes]
    chunks = feed_all(Detokenizer(), [bytes([byte]) for byte in data])
    whole = data.decode("utf-8", "ignore")
    is_cut = whole.encode() != data
    assert "".join(chunks) == whole + "�" * is_cut


def test_an_impossible_byte_is_replaced_at_once() -> None:
    detokenizer = Detokenizer()
    assert detokenizer.feed(b"\xff") == "�"
    assert detokenizer.feed(b"\xf0\x9f\x98") == ""
    assert detokenizer.feed(b"a") == "�a"
    assert detokenizer.finish() == ""


LITERAL = "alpha beta<END>gamma"
LONG = "x" * 1000


@pytest.mark.parametrize(
    ("stops", "text", "stop"),
    [
        (["<END>"], "alpha beta", "<END>"),
        (["D>g"], "alpha beta<EN", "D>g"),
        (["a"], "", "a"),
        ([LITERAL], "", LITERAL),
        ([LONG], LITERAL, None),
        ([LONG, "gamma"], "alpha beta<END>", "gamma"),
        (["END", "<END"], "alpha beta", "<END"),
        (["<END", "END"], "alpha beta", "<END"),
        (["<END>", "<END"], "alpha beta", "<END"),
        (["END>g", "<END>"], "alpha beta", "<END>"),
        ([f"{n}" for n in range(63)] + ["beta"], "alpha ", "beta"),
    ],
)
def test_the_text_ends_before_the_first_stop_string(
    stops: list[str], text: str, stop: str | None
) -> None:
    chunks, stopped_by = one_by_one(LITERAL, *stops)
    assert ("".join(chunks), stopped_by) == (text, stop)
    whole = Detokenizer(stops)
    assert "".join(feed_all(whole, [LITERAL.encode()])) == text
    assert whole.stopped_by == stop


@pytest.mark.parametrize(
    ("said", "stop", "text"),
    [
        ("value: <EN", "<END>", "value: <EN"),
        ("<E<E<END>", "<END>", "<E<E"),
        ("aaaab", "aaab", "a"),
        ("<EN" * 300, "<END>", "<EN" * 300),
        ("<EN" * 300 + "<END>", "<END>", "<EN" * 300),
    ],
)
def test_what_looked_like_a_stop_string_is_given_out_once(said: str, stop: str, text: str) -> None:
    chunks, _ = one_by_one(said, stop)
    assert "".join(chunks) == text


def test_nothing_comes_after_a_stop_nor_twice_at_the_end() -> None:
    detokenizer = Detokenizer(["<END>"])
    assert detokenizer.feed(b"a<EN") == "a"
    assert detokenizer.finish() == "<EN"
    assert detokenizer.finish() == ""
    stopped = Detokenizer(["<END>"])
    assert stopped.feed(b"a<END>b") == "a"
    assert stopped.finish() == ""


class CountingStr(str):
    """A stop string that counts how often it is compared."""

    n_compared = 0

    def startswith(self, *args: object) -> bool:
        CountingStr.n_compared += 1
        return super().startswith(*args)  # type: ignore[arg-type]


def test_many_long_stop_strings_cost_a_bounded_number_of_comparisons_per_character() -> None:
    CountingStr.n_compared = 0
    stops = [CountingStr("a" * 999 + chr(0x100 + n)) for n in range(64)]
    detokenizer = Detokenizer(stops)
    said = ("a" * 600 + "b") * 5
    chunks = feed_all(detokenizer, [bytes([byte]) for byte in said.encode()])
    assert "".join(chunks) == said
    # One look per start that fails, and one per token for the start that is held.
    assert CountingStr.n_compared <= 2 * len(stops) * len(said)


@given(odd_bytes, stop_strings, st.lists(st.integers(0, 40), max_size=12))
def test_bytes_are_out_with_as_many_characters_as_they_were_said_to_need(
    data: bytes, stops: list[str], places: list[int]
) -> None:
    detokenizer = Detokenizer(stops)
    n_fed, n_out = 0, 0
    for piece in cut(data, places):
        n_out += len(detokenizer.feed(piece))
        n_fed += len(piece)
        assert detokenizer.n_out == n_out
        assert detokenizer.n_needed == len(data[:n_fed].decode("utf-8", "replace"))
        if detokenizer.stopped_by is not None:
            return
    n_out += len(detokenizer.finish())
    assert detokenizer.n_out == n_out
