"""The account of image files, however they come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.errors import InvalidMedia, Overloaded
from runnerd.media.files import ENTRY_BYTES, Files, Holder, Picture

LIMIT = 4 * ENTRY_BYTES
FILES = {bytes([number]): b"x" * number * 40 for number in range(6)}


def test_tiny_files_count_for_more_than_their_bytes() -> None:
    files = Files(ENTRY_BYTES + 1)
    files.hold(Holder(), b"1", b"x")
    with pytest.raises(Overloaded):
        files.hold(Holder(), b"2", b"y")


def test_a_file_that_could_never_be_here_is_refused_for_good() -> None:
    with pytest.raises(InvalidMedia, match=f"{ENTRY_BYTES + 1} bytes, expected at most 9"):
        Files(9).hold(Holder(), b"1", b"x")


def test_what_is_not_here_is_not_held() -> None:
    assert Files(LIMIT).hold(Holder(), b"1") is None


def test_one_holder_has_half_of_the_room_or_a_single_file() -> None:
    files, greedy = Files(LIMIT), Holder()
    files.hold(greedy, b"1", b"x" * ENTRY_BYTES)
    with pytest.raises(Overloaded) as caught:
        files.hold(greedy, b"2", b"y")
    assert caught.value.details["n_bytes_limit"] == LIMIT // 2
    files.hold(greedy, b"1", b"x" * ENTRY_BYTES)
    assert greedy.n_bytes == 2 * ENTRY_BYTES
    files.hold(Holder(), b"2", b"y")
    with pytest.raises(Overloaded):
        files.hold(greedy, b"2")


@given(st.lists(st.tuples(st.sampled_from(list(FILES)), st.integers(0, 3), st.booleans())))
def test_the_account_is_right_at_any_time(moves: list[tuple[bytes, int, bool]]) -> None:
    files = Files(LIMIT)
    holders = [Holder() for _ in range(4)]
    held: list[list[bytes]] = [[], [], [], []]
    for digest, owner, comes in moves:
        if comes:
            try:
                file = files.hold(holders[owner], digest, FILES[digest])
            except Overloaded:
                continue
            assert file is not None
            held[owner].append(digest)
            if file.picture is None and digest[0] % 3:  # else it cannot be read
                files.note(file, Picture(digest[0] % 2, 1, 1))
        elif held[owner]:
            files.release(holders[owner], files._in_use[held[owner].pop()])
        in_use = {digest for digests in held for digest in digests}
        assert files._in_use.keys() == in_use
        for holder, digests in zip(holders, held, strict=True):
            n_bytes = sum(len(FILES[each]) + ENTRY_BYTES for each in set(digests))
            assert holder.n_bytes == n_bytes
            assert n_bytes <= LIMIT // 2 or len(set(digests)) == 1
        assert files.n_bytes_in_use == sum(len(FILES[each]) + ENTRY_BYTES for each in in_use)
        assert files.n_bytes_in_use <= files.n_bytes <= LIMIT
        readable = {each for each in FILES if each in files and each[0] % 3}
        assert {each for shown in files._digests.values() for each in shown} == readable
        for media_id in range(2):
            file = files.that_shows(media_id)
            assert (file is not None) == any(each[0] % 2 == media_id for each in readable)
