"""The shelf: which encoded media are there, which are wanted, and for how long they are kept."""

from time import process_time

import pytest

from runnerd.core.batch import Limits
from runnerd.core.prompt import Prompt
from runnerd.core.residency import Residency
from runnerd.core.sequence import Sequence
from runnerd.core.shelf import LOOK_AHEAD, Shelf
from tests.helpers import Image, make_limits, make_prompt, make_sequence

LIMITS = make_limits(n_slots=8, n_ctx=512, n_batch=512)


def picture(media_id: int, *, n_tiles: int = 1, encoded: bool = True) -> Image:
    """Return an image of five rows a tile that has to be encoded."""
    return Image(media_id, 5, encoded=encoded, n_tiles=n_tiles)


def make_running(*prompts: Prompt, limits: Limits = LIMITS) -> list[Sequence]:
    """Return sequences that have slots, with nothing cached."""
    residency = Residency(limits)
    for seq_id, prompt in enumerate(prompts):
        lease = residency.pool.acquire()
        assert lease is not None
        residency.admit(make_sequence(seq_id, prompt, limits=limits), lease)
    return residency.running


def make_one(*parts: list[int] | Image) -> Sequence:
    """Return a sequence that has a slot, with nothing cached."""
    (sequence,) = make_running(make_prompt(*parts))
    return sequence


def test_a_medium_is_wanted_until_it_is_there() -> None:
    shelf, sequence = Shelf(), make_one([1, 2], picture(7), [3])
    assert shelf.wanted([sequence]) == (7,)
    assert shelf.halt(sequence) == 2
    shelf.put(7, "rows")
    assert shelf.wanted([sequence]) == ()
    assert shelf.halt(sequence) == 8
    assert shelf.get(7) == "rows"


def test_a_medium_that_the_engine_makes_itself_is_never_wanted() -> None:
    shelf, sequence = Shelf(), make_one(picture(7, encoded=False), picture(8))
    assert shelf.wanted([sequence]) == (8,)
    assert shelf.halt(sequence) == 5


def test_a_sequence_is_blocked_only_right_before_rows_that_are_not_there() -> None:
    shelf, sequence = Shelf(), make_one([1, 2], picture(7), [3])
    assert not shelf.blocks(sequence)
    sequence.slot.n_past = 2
    assert shelf.blocks(sequence)
    shelf.put(7, "rows")
    assert not shelf.blocks(sequence)


def test_tiles_of_one_picture_and_the_same_picture_again_are_wanted_once() -> None:
    twice = make_one(picture(7, n_tiles=3), [1], picture(7, n_tiles=3), picture(8))
    assert Shelf().wanted([twice]) == (7, 8)


def test_what_the_fewest_inputs_lie_before_is_wanted_first() -> None:
    running = make_running(
        make_prompt([1] * 9, picture(7), picture(8)),
        make_prompt([2] * 3, picture(9)),
        make_prompt([3] * 12, picture(10)),
    )
    assert Shelf().wanted(running) == (9, 7, 10, 8)
    running[0].slot.n_past = 9
    assert Shelf().wanted(running) == (7, 9, 8, 10)


def test_of_equals_whoever_was_served_longest_ago_gets_its_medium_first() -> None:
    running = make_running(make_prompt(picture(7)), make_prompt(picture(8)))
    running[0].last_step, running[1].last_step = 5, 4
    assert Shelf().wanted(running) == (8, 7)


def test_a_sequence_wants_no_more_media_at_once_than_it_soon_needs() -> None:
    sequence = make_one(*(picture(media_id) for media_id in range(50)))
    assert Shelf().wanted([sequence]) == tuple(range(LOOK_AHEAD))


def test_a_sequence_moves_on_to_want_the_next_media() -> None:
    shelf, sequence = Shelf(), make_one(*(picture(media_id) for media_id in range(50)))
    for media_id in range(LOOK_AHEAD):
        shelf.put(media_id, "rows")
    assert shelf.wanted([sequence]) == ()
    sequence.slot.n_past = 5
    shelf.tidy([sequence])
    assert shelf.wanted([sequence]) == (LOOK_AHEAD,)
    assert shelf.get(0) is None
    assert shelf.get(1) == "rows"


def test_media_of_many_sequences_are_put_there_faster_than_they_are_looked_for() -> None:
    pictures = [[picture(8 * seq_id + n, n_tiles=4) for n in range(8)] for seq_id in range(60)]
    limits = make_limits(n_slots=60, n_ctx=512, n_batch=512)
    shelf, running = (
        Shelf(),
        make_running(*(make_prompt(*each) for each in pictures), limits=limits),
    )
    started_at = process_time()
    wanted = shelf.wanted(running)
    looked_at = process_time()
    for media_id in wanted:
        shelf.put(media_id, "rows")
    assert process_time() - looked_at < looked_at - started_at
    assert len(wanted) == 60 * LOOK_AHEAD
    shelf.check(running)


def test_a_medium_that_nobody_needs_is_a_fault_once_the_shelf_was_tidied() -> None:
    shelf, (sequence, other) = Shelf(), make_running(make_prompt(picture(7)), make_prompt([1]))
    shelf.put(7, "rows")
    shelf.check([other])
    shelf.tidy([sequence])
    with pytest.raises(AssertionError, match="nobody needs"):
        shelf.check([other])


def test_a_paused_sequence_wants_nothing_but_keeps_what_it_has() -> None:
    shelf, sequence = Shelf(), make_one(picture(7), picture(8))
    sequence.paused = True
    assert shelf.wanted([sequence]) == ()
    shelf.put(7, "rows")
    shelf.tidy([sequence])
    assert shelf.get(7) == "rows"
    assert shelf.waiting_for(8, [sequence]) == [sequence]


def test_a_sequence_that_is_to_end_or_is_suspended_needs_nothing() -> None:
    shelf = Shelf()
    ending, suspended = make_running(make_prompt(picture(7)), make_prompt(picture(8)))
    ending.ending = "cancelled"
    suspended.suspended_at = 1
    for media_id in (7, 8):
        shelf.put(media_id, "rows")
    shelf.tidy([ending, suspended])
    assert [shelf.get(media_id) for media_id in (7, 8)] == [None, None]
    assert shelf.wanted([ending, suspended]) == ()
    assert shelf.waiting_for(7, [ending, suspended]) == []


def test_who_follows_another_wants_only_what_comes_behind_the_common_beginning() -> None:
    shelf = Shelf()
    leader, follower = make_running(
        make_prompt([1] * 30, picture(7), [2]),
        make_prompt([1] * 30, picture(7), [3], picture(8)),
    )
    assert follower.follows is leader
    assert shelf.wanted([follower]) == (8,)
    assert shelf.waiting_for(7, [leader, follower]) == [leader]
    follower.n_awaited = 0  # in vain: what it needs is not known before it goes on
    assert shelf.wanted([follower]) == ()
    assert shelf.waiting_for(7, [follower]) == []


def test_an_image_that_is_cached_in_part_is_kept_to_its_end() -> None:
    shelf, sequence = Shelf(), make_one(Image(7, 5, one_pass=False, encoded=True), [1])
    shelf.put(7, "rows")
    sequence.slot.n_past = 4
    shelf.tidy([sequence])
    assert shelf.get(7) == "rows"
    sequence.slot.n_past = 5
    shelf.tidy([sequence])
    assert shelf.get(7) is None
