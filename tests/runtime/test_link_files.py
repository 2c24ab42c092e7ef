from hashlib import sha256

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.link_files import N_REMEMBERED, LinkFiles, Outgoing, outgoing_of
from runnerd.sizes import HASHED_AT_ONCE
from runnerd_protocol.messages import Generate, Media, MediaPart, Part, TextPart

FILES = [bytes([n]) * (n + 1) for n in range(5)]
BIG = 2**20


def digest(data: bytes) -> bytes:
    return sha256(data).digest()


def outgoing(*parts: Part, request_id: int = 1) -> Outgoing:
    made = anyio.run(outgoing_of, Generate(request_id, list(parts)), BIG)
    assert made is not None
    return made


parts_with_files = st.lists(
    st.one_of(
        st.sampled_from(FILES).map(MediaPart),
        st.sampled_from(FILES).map(lambda data: MediaPart(data, digest(data))),
        st.sampled_from(FILES).map(lambda data: MediaPart(sha256=digest(data))),
        st.text().map(TextPart),
    ),
    max_size=8,
)


@given(parts_with_files, st.sets(st.sampled_from(FILES)))
def test_what_is_sent_stands_for_what_was_asked(parts: list[Part], known: set[bytes]) -> None:
    made = anyio.run(outgoing_of, Generate(1, parts), BIG)
    if made is None:
        assert not any(isinstance(part, MediaPart) and part.data for part in parts)
        return
    sent = {digest(data): data for data in known}
    prompt = made.by_hash(sent.keys()).prompt
    there = dict(sent)
    for asked, part in zip(parts, prompt, strict=True):
        if not isinstance(asked, MediaPart):
            assert part == asked
            continue
        assert isinstance(part, MediaPart)
        if part.data:
            key = digest(part.data)
            assert key not in there  # nothing goes twice
            there[key] = part.data
        else:
            assert part.sha256 is not None
            key = part.sha256
        assert key == (asked.sha256 or digest(asked.data))
        assert key in there or not asked.data
    n_bytes = sum(len(data) for key, data in made.files.items() if key not in sent)
    assert made.n_bytes_without(sent.keys()) == n_bytes


def test_without_any_file_all_go_by_their_hashes() -> None:
    made = outgoing(MediaPart(b"a"), TextPart("x"), MediaPart(b"b"))
    assert made.by_hash().prompt == [
        MediaPart(sha256=digest(b"a")),
        TextPart("x"),
        MediaPart(sha256=digest(b"b")),
    ]


def test_large_files_are_hashed_like_small_ones() -> None:
    large = bytes(HASHED_AT_ONCE + 1)
    assert outgoing(MediaPart(large)).files == {digest(large): large}


@pytest.mark.parametrize("prompt", ["x", [], [TextPart("x")], [MediaPart(sha256=bytes(32))]])
def test_a_prompt_without_files_is_sent_as_it_is(prompt: str | list[Part]) -> None:
    assert anyio.run(outgoing_of, Generate(1, prompt), BIG) is None


def test_so_many_hashes_are_remembered_and_the_longest_unused_is_forgotten() -> None:
    files = LinkFiles()
    first, second = outgoing(MediaPart(b"first")), outgoing(MediaPart(b"second"))
    files.note_sent(first)
    files.note_sent(second)
    files.note_sent(first)  # used again
    many = [MediaPart(b"%d" % n) for n in range(N_REMEMBERED - 1)]
    files.note_sent(outgoing(*many))
    assert len(files.sent) == N_REMEMBERED
    assert digest(b"first") in files.sent
    assert digest(b"second") not in files.sent


def test_files_are_due_once_in_the_order_in_which_they_were_wanted() -> None:
    files = LinkFiles()
    a, b = digest(b"a"), digest(b"b")
    files.keep(outgoing(MediaPart(b"a"), MediaPart(b"b"), request_id=1))
    files.keep(outgoing(MediaPart(b"a"), request_id=2))

    async def due(n_files: int) -> list[Media]:
        with anyio.fail_after(5):
            return [await files.next_due() for _ in range(n_files)]

    assert files.want(2, [a]) is None
    assert files.want(1, [b, a]) is None
    assert files.want(1, [a, b]) is None
    assert anyio.run(due, 3) == [Media(2, b"a"), Media(1, b"b"), Media(1, b"a")]


def test_of_a_request_that_was_dropped_nothing_is_due() -> None:
    files = LinkFiles()
    for request_id in (1, 2):
        files.keep(outgoing(MediaPart(b"a"), request_id=request_id))
        files.want(request_id, [digest(b"a")])
    files.drop(1)
    files.drop(1)
    assert anyio.run(files.next_due) == Media(2, b"a")


def test_where_one_wanted_file_is_not_here_none_is_due() -> None:
    files = LinkFiles()
    files.keep(outgoing(MediaPart(b"a"), request_id=1))
    assert files.want(1, [digest(b"a"), digest(b"b")]) == digest(b"b")
    assert files.want(7, [digest(b"a")]) == digest(b"a")

    async def wait() -> Media:
        with anyio.move_on_after(0.01):
            return await files.next_due()
        return Media(0, b"none")

    assert anyio.run(wait) == Media(0, b"none")
