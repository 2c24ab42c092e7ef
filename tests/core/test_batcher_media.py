"""Encoded media in the batcher: who waits for them, who goes on, and who ends without them."""

import pytest

from runnerd.core.batch import BatchKind, KVRemove, StepResult
from runnerd.core.batcher import BACK_OFFS, Batcher
from runnerd.errors import EngineFailed, InvalidMedia
from tests.helpers import (
    END,
    Image,
    endings,
    make_batcher,
    make_prompt,
    make_sequence,
    result_of,
    rows_named,
    rows_of,
    run_all,
    run_step,
)

RED = Image(7, 5, encoded=True)
BLUE = Image(8, 5, encoded=True)
SPLIT = Image(9, 12, n_pos=4, one_pass=False, encoded=True)
ERROR = InvalidMedia("it cannot be encoded", "another")


def offer_all(batcher: Batcher) -> None:
    """Offer all that is wanted."""
    for media_id in batcher.wanted_media():
        batcher.offer_media(media_id, rows_named(media_id))
    batcher.check()


def test_others_go_on_while_a_sequence_waits_for_its_image() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt([1], RED, [2])))
    batcher.submit(make_sequence(2, [3, 4]))
    assert [rows_of(run_step(batcher)[0]) for _ in range(3)] == [{1: 1, 2: 2}, {2: 1}, {2: 1}]
    assert batcher.wanted_media() == (7,)
    offer_all(batcher)
    assert [rows_of(run_step(batcher)[0]) for _ in range(2)] == [{1: 5, 2: 1}, {1: 1, 2: 1}]


def test_there_is_no_step_while_all_wait_for_images() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt(RED, [1])))
    batcher.submit(make_sequence(2, make_prompt(BLUE, [1])))
    assert batcher.plan(0.0) is None
    assert batcher.wanted_media() == (7, 8)
    batcher.offer_media(8, rows_named(8))
    assert rows_of(run_step(batcher)[0]) == {2: 5}


def test_media_offered_after_admission_are_of_use_in_the_first_step() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt(RED, [1])))
    batcher.admit(0.0)
    offer_all(batcher)
    assert rows_of(run_step(batcher)[0]) == {1: 5}


def test_a_medium_is_let_go_of_when_a_newcomer_takes_the_cells_of_whoever_needs_it() -> None:
    batcher = make_batcher(n_cells=64)
    batcher.submit(make_sequence(1, make_prompt([1] * 50, RED, [1] * 5)))
    batcher.admit(0.0)
    offer_all(batcher)
    batcher.submit(make_sequence(3, [3]))
    batcher.end(3, "cancelled")  # whatever ends, what is kept is looked through
    batcher.pause(1, paused=True)
    batcher.submit(make_sequence(2, [2] * 8))
    batcher.admit(0.0)
    assert batcher.residency.running[0].suspended_at is not None
    batcher.check()
    assert rows_of(run_step(batcher)[0]) == {2: 8}


def test_only_sequences_that_have_slots_want_media() -> None:
    batcher = make_batcher(n_slots=1)
    batcher.submit(make_sequence(1, make_prompt([1], RED)))
    batcher.submit(make_sequence(2, make_prompt([1], BLUE)))
    run_step(batcher)
    assert batcher.wanted_media() == (7,)


def test_the_rows_go_with_the_span_and_are_let_go_of_after_the_last() -> None:
    batcher = make_batcher(n_batch=8)
    batcher.submit(make_sequence(1, make_prompt([1], SPLIT, [2]), max_tokens=1))
    run_step(batcher)
    offer_all(batcher)
    spans = [run_step(batcher)[0].batches[0].spans[0] for _ in range(2)]
    assert [(s.pos, s.row0, len(s.inputs), s.media) for s in spans] == [
        (1, 0, 8, rows_named(9)),
        (1, 8, 4, rows_named(9)),
    ]
    (token,) = run_step(batcher)[0].batches[0].spans
    assert (token.pos, token.media) == (5, None)


def test_media_offered_during_a_step_are_of_use_in_the_next() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt([1], RED, [2])))
    step = batcher.plan(0.0)
    assert step is not None
    offer_all(batcher)
    batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0)
    batcher.check()
    assert rows_of(run_step(batcher)[0]) == {1: 5}


def test_media_that_nobody_wants_any_more_are_not_kept() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt([1], RED, [2])))
    run_step(batcher)
    batcher.end(1, "cancelled")
    batcher.offer_media(7, rows_named(7))
    batcher.check()
    assert batcher.plan(0.0) is None
    batcher.submit(make_sequence(2, make_prompt([1], RED, [2])))
    assert batcher.plan(0.0) is None
    assert batcher.wanted_media() == (7,)


def test_media_of_a_sequence_that_ends_between_steps_are_let_go_of() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt([1], RED, [2])))
    run_step(batcher)
    offer_all(batcher)
    batcher.end(1, "cancelled")
    batcher.check()
    assert batcher.wanted_media() == ()


def test_an_image_in_the_cache_is_not_wanted() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt([1], RED, [2, 3]), max_tokens=1))
    run_step(batcher)
    offer_all(batcher)
    run_all(batcher)
    batcher.submit(make_sequence(2, make_prompt([1], RED, [2, 4]), max_tokens=1))
    assert rows_of(run_step(batcher)[0]) == {2: 1}
    assert batcher.wanted_media() == ()


def test_the_same_prompt_again_that_ends_in_an_image_evaluates_that_again() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt([1] * 6, RED), max_tokens=1))
    run_step(batcher)
    offer_all(batcher)
    run_all(batcher)
    batcher.submit(make_sequence(2, make_prompt([1] * 6, RED), max_tokens=1))
    assert batcher.plan(0.0) is None
    assert batcher.wanted_media() == (7,)
    offer_all(batcher)
    assert rows_of(run_step(batcher)[0]) == {2: 5}


def test_an_image_twice_in_a_prompt_is_wanted_once() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt(RED, [1], RED, [2]), max_tokens=1))
    assert batcher.plan(0.0) is None
    assert batcher.wanted_media() == (7,)
    offer_all(batcher)
    assert endings(run_all(batcher)) == {1: "length"}


def test_an_image_that_another_evaluates_is_awaited_and_not_wanted() -> None:
    batcher = make_batcher(n_batch=64)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, make_prompt([1] * 35, RED, [seq_id]), max_tokens=1))
    assert rows_of(run_step(batcher)[0]) == {1: 35}
    assert batcher.wanted_media() == (7,)
    offer_all(batcher)
    run_step(batcher)
    assert batcher.wanted_media() == ()
    assert endings(run_all(batcher)) == {1: "length", 2: "length"}


def test_whoever_follows_one_that_is_cancelled_before_its_image_wants_it_itself() -> None:
    batcher = make_batcher(n_batch=64)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, make_prompt([1] * 35, RED, [seq_id]), max_tokens=1))
    run_step(batcher)
    batcher.end(1, "cancelled")
    assert batcher.plan(0.0) is None
    assert batcher.wanted_media() == (7,)
    offer_all(batcher)
    assert endings(run_all(batcher)) == {2: "length"}


def test_an_image_that_fails_ends_only_those_who_need_it_themselves() -> None:
    batcher = make_batcher(n_slots=4, n_batch=128)
    for seq_id in (1, 2):
        batcher.submit(make_sequence(seq_id, make_prompt([1] * 35, RED, [seq_id]), max_tokens=1))
    batcher.submit(make_sequence(3, make_prompt([2], BLUE), max_tokens=1))
    batcher.submit(make_sequence(4, make_prompt([3], RED), max_tokens=1))
    run_step(batcher)
    assert endings(batcher.fail_media(7, ERROR)) == {1: ERROR, 4: ERROR}
    batcher.check()
    assert batcher.plan(0.0) is None
    assert batcher.wanted_media() == (7, 8)
    offer_all(batcher)
    assert endings(run_all(batcher)) == {2: "length", 3: "length"}


def test_an_image_that_fails_during_a_step_ends_its_sequence_behind_it() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt([1], RED)))
    batcher.submit(make_sequence(2, make_prompt([2] * 30, BLUE)))
    step = batcher.plan(0.0)
    assert step is not None
    assert batcher.fail_media(7, ERROR) == []
    assert batcher.wanted_media() == (8,)
    said = batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0)
    batcher.check()
    assert endings(said) == {1: ERROR}


def test_idle_slots_give_nothing_up_for_what_lies_behind_a_missing_image() -> None:
    batcher = make_batcher(n_slots=3, n_ctx=48, n_cells=60, is_unified=True)
    batcher.submit(make_sequence(1, [1] * 20, max_tokens=1))
    run_all(batcher)
    batcher.submit(make_sequence(2, [2] * 4))
    batcher.submit(make_sequence(3, make_prompt([3] * 8, RED, [4] * 20), max_tokens=1))
    batcher.admit(0.0)
    batcher.pause(3, paused=True)
    for _ in range(20):
        run_step(batcher)
    batcher.pause(3, paused=False)
    assert batcher.residency.ledger.n_free < 33
    step, _ = run_step(batcher)
    assert rows_of(step) == {2: 1, 3: 8}
    assert step.edits == ()
    offer_all(batcher)
    step, _ = run_step(batcher)
    assert rows_of(step) == {2: 1, 3: 5}


def test_a_paused_sequence_gets_its_image_when_it_goes_on() -> None:
    batcher = make_batcher()
    batcher.submit(make_sequence(1, make_prompt(RED, [1]), max_tokens=1))
    batcher.plan(0.0)
    batcher.pause(1, paused=True)
    assert batcher.wanted_media() == ()
    batcher.pause(1, paused=False)
    assert batcher.wanted_media() == (7,)
    offer_all(batcher)
    assert endings(run_all(batcher)) == {1: "length"}


def test_a_suspended_sequence_wants_its_image_again_when_it_goes_on() -> None:
    batcher = make_batcher(n_ctx=40, n_cells=48, is_unified=True)
    batcher.submit(make_sequence(1, [1] * 8, max_tokens=30))
    batcher.submit(make_sequence(2, make_prompt([2] * 20, RED, [3]), max_tokens=1))
    run_step(batcher)
    offer_all(batcher)
    batcher.pause(2, paused=True)  # so that it is the first to give up its cells
    while all(s.suspended_at is None for s in batcher.residency.running):
        run_step(batcher)
    batcher.pause(2, paused=False)
    assert batcher.wanted_media() == ()
    said = run_all(batcher)
    assert batcher.wanted_media() == (7,)
    offer_all(batcher)
    assert endings(said + run_all(batcher)) == {1: "length", 2: "length"}


def test_a_sequence_that_waits_for_its_image_gives_its_cells_to_an_older_one() -> None:
    batcher = make_batcher(n_ctx=40, n_cells=44, is_unified=True)
    batcher.submit(make_sequence(1, [1] * 8, max_tokens=32))
    batcher.submit(make_sequence(2, make_prompt([2] * 10, RED, [3]), max_tokens=1))
    said = run_all(batcher)
    assert endings(said) == {1: "length"}
    assert said[-1].sequence.n_suspended == 0
    assert batcher.wanted_media() == (7,)
    offer_all(batcher)
    assert endings(run_all(batcher)) == {2: "length"}


def test_what_is_cached_of_an_image_that_was_cut_short_is_not_gone_on_from() -> None:
    batcher = make_batcher(n_slots=1, n_batch=8)
    batcher.submit(make_sequence(1, make_prompt([1, 2], SPLIT, [3])))
    for _ in range(2):
        run_step(batcher)
        offer_all(batcher)
    assert batcher.residency.running[0].n_past == 10
    batcher.end(1, "cancelled")
    batcher.submit(make_sequence(2, make_prompt([1, 2], SPLIT, [4])))
    assert batcher.plan(0.0) is None
    assert batcher.residency.edits[1:2] == [KVRemove(0, 2)]
    assert batcher.residency.running[0].n_past == 2
    offer_all(batcher)
    assert run_step(batcher)[0].batches[0].spans[0].row0 == 0


@pytest.mark.parametrize("one_pass", [True, False])
def test_an_image_that_finds_no_room_makes_others_give_way_and_ends_alone(one_pass: bool) -> None:
    batcher = make_batcher(n_slots=3)
    image = Image(7, 20, one_pass=one_pass, encoded=True)
    batcher.submit(make_sequence(1, make_prompt([1], image, [2])))
    batcher.submit(make_sequence(2, [3]))
    batcher.submit(make_sequence(3, [4]))
    run_step(batcher)
    offer_all(batcher)
    kinds = (BatchKind.MEDIA, BatchKind.MEDIA_NON_CAUSAL)
    n_steps = 0
    while 1 in batcher.seq_ids:
        step = batcher.plan(0.0)
        assert step is not None
        n_fitting = [batch.kind in kinds for batch in step.batches].index(True)
        fitting = [span for batch in step.batches[:n_fitting] for span in batch.spans]
        said = batcher.back_off(step, StepResult(n_fitting, (65,) * len(fitting)), 0.0)
        batcher.check()
        n_steps += 1
        assert n_steps <= 6 + 2 + BACK_OFFS, "a group is tried for ever"
    assert isinstance(endings(said)[1], EngineFailed)
    assert endings(run_all(batcher, token=END)) == {2: "stop", 3: "stop"}


def test_a_prompt_of_many_images_does_not_keep_anothers_waiting() -> None:
    batcher = make_batcher(n_ctx=128)
    many = [Image(media_id, 5, encoded=True) for media_id in range(10, 20)]
    batcher.submit(make_sequence(1, make_prompt(*many, [1]), max_tokens=1))
    batcher.submit(make_sequence(2, make_prompt([2], RED, [3]), max_tokens=1))
    encoded: list[int] = []
    while batcher.seq_ids:
        step = batcher.plan(0.0)
        if step is None:
            encoded.append(batcher.wanted_media()[0])
            batcher.offer_media(encoded[-1], rows_named(encoded[-1]))
        else:
            batcher.commit(step, result_of(step, lambda _: 65), 0.0, 0.0)
        batcher.check()
    assert encoded == [10, 7, *range(11, 20)]
