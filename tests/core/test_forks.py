"""Forks: what a copy shares, what a shift may move, and going back by checkpoints."""

from runnerd.core.batch import (
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    KVCopy,
    KVRemove,
    KVShift,
    Limits,
    StepResult,
)
from runnerd.core.prompt import Prompt
from runnerd.core.residency import Residency
from runnerd.core.sequence import Sequence
from tests.helpers import Image, make_limits, make_prompt, make_sequence

SYSTEM = list(range(100, 140))


def admit(
    residency: Residency,
    limits: Limits,
    seq_id: int,
    prompt: Prompt | list[int],
    *,
    evaluate: bool = True,
    n_keep: int = 0,
) -> Sequence:
    """Give a sequence a slot and evaluate its prompt; forget what edits came before."""
    residency.edits.clear()
    sequence = make_sequence(seq_id, prompt, limits=limits, shift=True, n_keep=n_keep, max_tokens=0)
    lease = residency.pool.acquire()
    assert lease is not None
    residency.admit(sequence, lease)
    if evaluate:
        residency.store(sequence, sequence.n_pending)
    residency.check()
    return sequence


def release(residency: Residency, sequence: Sequence) -> None:
    assert sequence.lease is not None
    residency.release(sequence, sequence.lease)
    residency.check()


# --- sharing ---------------------------------------------------------------------------------


def test_a_fork_takes_cells_only_for_what_is_new() -> None:
    limits = make_limits(n_slots=3, is_unified=True)
    residency = Residency(limits)
    admit(residency, limits, 1, [*SYSTEM, 1, 2])
    second = admit(residency, limits, 2, [*SYSTEM, 3])
    assert residency.edits == [KVCopy(0, 1, 40)]
    assert (second.n_cached, residency.ledger.n_used) == (40, 43)


def test_a_stream_copy_takes_cells_for_all() -> None:
    limits = make_limits(n_slots=2)
    residency = Residency(limits)
    admit(residency, limits, 1, [*SYSTEM, 1, 2])
    second = admit(residency, limits, 2, [*SYSTEM, 3])
    assert residency.edits == [KVCopy(0, 1, 40)]
    assert (second.n_cached, residency.ledger.n_used) == (40, 42 + 41)


def test_a_slot_is_emptied_before_a_copy_goes_there() -> None:
    limits = make_limits(n_slots=2, is_unified=True)
    residency = Residency(limits)
    first = admit(residency, limits, 1, [1, 1, 1])
    release(residency, first)
    running = admit(residency, limits, 2, [*SYSTEM, 2])
    assert running.slot_id == 1
    admit(residency, limits, 3, [*SYSTEM, 3])
    assert residency.edits == [KVRemove(0, 0), KVCopy(1, 0, 40)]


def test_a_copy_comes_before_the_removal_that_takes_its_source() -> None:
    limits = make_limits(n_slots=2, n_ctx=64, n_cells=64, is_unified=True)
    residency = Residency(limits)
    release(residency, admit(residency, limits, 1, [*SYSTEM[:10], *range(50)]))
    admit(residency, limits, 2, [*SYSTEM[:10], *range(200, 230)])
    assert residency.edits == [KVCopy(0, 1, 10), KVRemove(0, 34)]
    assert residency.ledger.n_used == 64


def test_what_only_idle_slots_share_is_given_up_last() -> None:
    limits = make_limits(n_slots=3, n_ctx=64, n_cells=70, is_unified=True)
    residency = Residency(limits)
    first = admit(residency, limits, 1, [*SYSTEM, 1, 1])
    second = admit(residency, limits, 2, [*SYSTEM, 2, 2])
    release(residency, first)
    release(residency, second)
    assert residency.make_room(30)
    assert [slot.n_past for slot in residency.pool.slots] == [40, 40, 0]
    assert residency.make_room(40)
    assert [slot.n_past for slot in residency.pool.slots] == [0, 30, 0]
    residency.check()


def test_what_a_running_sequence_shares_is_not_given_up_for_nothing() -> None:
    limits = make_limits(n_slots=3, n_ctx=64, n_cells=64, is_unified=True)
    residency = Residency(limits)
    first = admit(residency, limits, 1, [*SYSTEM, 1, 1])
    admit(residency, limits, 2, [*SYSTEM, 2, 2])
    release(residency, first)
    assert residency.make_room(22)
    assert residency.pool.slots[0].n_past == 40


def test_a_prompt_that_shares_a_running_prefix_needs_only_the_rest() -> None:
    limits = make_limits(n_slots=2, n_ctx=64, n_cells=64, is_unified=True)
    residency = Residency(limits)
    admit(residency, limits, 1, [*SYSTEM, 1])
    alike = make_sequence(2, [*SYSTEM, *range(20)], limits=limits)
    other = make_sequence(3, [*range(60)], limits=limits)
    assert residency.can_take(alike)
    assert not residency.can_take(other)


def test_a_prefix_that_ends_in_a_medium_is_copied_up_to_it() -> None:
    limits = make_limits(n_slots=2, is_unified=True)
    residency = Residency(limits)
    admit(residency, limits, 1, make_prompt([1, 2], Image(7, 6, n_pos=2), [3], Image(8, 4)))
    admit(residency, limits, 2, make_prompt([1, 2], Image(7, 6, n_pos=2), [3], Image(9, 4)))
    assert residency.edits == [KVCopy(0, 1, 5)]


# --- shifts ----------------------------------------------------------------------------------


def test_cells_that_another_holds_too_are_evaluated_again_not_moved() -> None:
    limits = make_limits(n_slots=2, n_ctx=44, is_unified=True)
    residency = Residency(limits)
    first = admit(residency, limits, 1, [*SYSTEM, 1, 2, 3, 4])
    admit(residency, limits, 2, [*SYSTEM, 9])
    residency.edits.clear()
    residency.shift(first)
    residency.check()
    assert residency.edits == [KVRemove(0, 0)]
    assert first.n_past == 0
    assert residency.ledger.n_used == 41


def test_cells_behind_what_another_holds_are_moved() -> None:
    limits = make_limits(n_slots=2, n_ctx=60, is_unified=True)
    residency = Residency(limits)
    first = admit(residency, limits, 1, [*SYSTEM, *range(20)], n_keep=40)
    admit(residency, limits, 2, [*SYSTEM, 9])
    residency.edits.clear()
    residency.shift(first)
    residency.check()
    assert residency.edits == [KVRemove(0, 40, 50), KVShift(0, 50, None, -10)]


def test_a_shifted_sequence_offers_only_what_it_kept() -> None:
    limits = make_limits(n_slots=2, n_ctx=60, is_unified=True)
    residency = Residency(limits)
    first = admit(residency, limits, 1, [*SYSTEM, *range(20)], n_keep=5)
    residency.shift(first)
    assert admit(residency, limits, 2, list(first.inputs)).n_cached == 5
    release(residency, first)
    assert residency.pool.slots[0].n_past == 5


# --- going back ------------------------------------------------------------------------------


def make_recurrent(n_slots: int = 2) -> tuple[Residency, Limits]:
    limits = make_limits(
        n_slots=n_slots, n_ctx=256, can_shift=False, is_unified=True, can_rewind=False
    )
    return Residency(limits), limits


def evaluate(residency: Residency, sequence: Sequence) -> None:
    """Evaluate a prompt in steps that end at its halts."""
    stops = [*sequence.halts, len(sequence.inputs)]
    for stop in stops:
        residency.store(sequence, stop - sequence.n_past)
        residency.check()


def test_a_halt_is_kept_at_the_start_of_the_next_step() -> None:
    residency, limits = make_recurrent()
    sequence = admit(residency, limits, 1, [*SYSTEM, 1, 2], evaluate=False)
    assert sequence.halts == [38]
    residency.store(sequence, 38)
    assert residency.edits == [CheckpointSave(1, 0)]


def test_a_state_that_cannot_go_back_is_copied_with_a_checkpoint() -> None:
    residency, limits = make_recurrent()
    evaluate(residency, admit(residency, limits, 1, [*SYSTEM, 1, 2], evaluate=False))
    second = admit(residency, limits, 2, [*SYSTEM, 9, 9, 9], evaluate=False)
    assert residency.edits == [KVCopy(0, 1, 38), CheckpointRestore(1, 1, 38)]
    assert second.n_cached == 38


def test_a_state_is_copied_whole_where_the_prompt_goes_on_from_it() -> None:
    residency, limits = make_recurrent()
    first = admit(residency, limits, 1, [*SYSTEM, 1, 2])
    second = admit(residency, limits, 2, [*first.inputs, 9, 9], evaluate=False)
    assert residency.edits == [KVCopy(0, 1, 42)]
    assert second.n_cached == 42


def test_a_slot_goes_back_to_a_checkpoint_in_place() -> None:
    residency, limits = make_recurrent(n_slots=1)
    first = admit(residency, limits, 1, [*SYSTEM, 1, 2], evaluate=False)
    evaluate(residency, first)
    release(residency, first)
    second = admit(residency, limits, 2, [*SYSTEM, 9, 9, 9], evaluate=False)
    assert residency.edits == [CheckpointRestore(1, 0, 38)]
    assert (second.n_cached, residency.ledger.n_used) == (38, 38)


def test_the_same_beginning_is_not_kept_for_each_slot() -> None:
    residency, limits = make_recurrent(n_slots=3)
    for seq_id in range(3):
        sequence = admit(residency, limits, seq_id, [*SYSTEM, 1, 2], evaluate=False)
        evaluate(residency, sequence)
    residency.observe(StepResult(1, (), saved=((1, 10),)))
    assert residency.checkpoints.n_kept == 1


def test_checkpoints_over_the_budget_are_dropped() -> None:
    limits = make_limits(n_slots=2, n_ctx=256, can_shift=False, can_rewind=False)
    residency = Residency(limits, checkpoint_budget_bytes=10)
    evaluate(residency, admit(residency, limits, 1, [*SYSTEM, 1, 2], evaluate=False))
    residency.edits.clear()
    residency.observe(StepResult(1, (), saved=((1, 11),)))
    assert residency.edits == [CheckpointDrop(1)]
    residency.check()


def test_a_shift_goes_back_to_what_is_kept_by_a_checkpoint() -> None:
    residency, limits = make_recurrent(n_slots=1)
    sequence = admit(residency, limits, 1, list(range(256)), evaluate=False, n_keep=50)
    for n_shifts in range(1, 3):
        evaluate(residency, sequence)
        sequence.inputs += range(256 - len(sequence.inputs))
        residency.store(sequence, sequence.n_pending)
        residency.shift(sequence)
        residency.check()
        assert sequence.n_past == (0 if n_shifts == 1 else 50)


def test_what_an_aborted_step_spoiled_goes_back_to_a_checkpoint() -> None:
    limits = make_limits(n_slots=1, n_ctx=256, can_shift=False, window=8)
    residency = Residency(limits)
    sequence = admit(residency, limits, 1, list(range(200)), evaluate=False)
    sequence.halts = [60]
    residency.store(sequence, 60)
    residency.observe(StepResult(1, (), oldest=(52,), saved=((1, 10),)))
    residency.edits.clear()
    residency.observe(StepResult(0, (), n_stored=(3,), oldest=(58,)))
    residency.store(sequence, 3)
    residency.mend()
    residency.check()
    assert residency.edits == [CheckpointRestore(1, 0, 60)]
    assert sequence.n_past == 60


def test_what_an_aborted_step_left_complete_stays() -> None:
    limits = make_limits(n_slots=1, n_ctx=256, can_shift=False, window=8)
    residency = Residency(limits)
    sequence = admit(residency, limits, 1, list(range(200)), evaluate=False)
    residency.edits.clear()
    residency.observe(StepResult(0, (), n_stored=(30,), oldest=(22,)))
    residency.store(sequence, 30)
    residency.mend()
    assert (sequence.n_past, residency.edits) == (30, [])


def test_a_fork_of_a_fork_to_a_shorter_prefix_is_made_from_the_first_in_the_same_step() -> None:
    limits = make_limits(n_slots=3, n_ctx=256, can_shift=False, window=8, is_unified=True)
    residency = Residency(limits)
    text = list(range(100))
    admit(residency, limits, 1, text)
    admit(residency, limits, 2, [*text[:80], 1], evaluate=False)
    assert residency.edits == [KVCopy(0, 1, 80)]
    admit(residency, limits, 3, [*text[:60], 2], evaluate=False)
    assert residency.edits == [KVCopy(0, 2, 60)]


def test_a_fork_of_a_fork_that_is_as_long_costs_nothing() -> None:
    limits = make_limits(n_slots=3, n_ctx=256, can_shift=False, window=8, is_unified=True)
    residency = Residency(limits)
    text = list(range(100))
    admit(residency, limits, 1, text)
    for seq_id in (2, 3):
        assert admit(residency, limits, seq_id, [*text[:80], seq_id]).n_cached == 80


def test_nothing_shorter_is_forked_from_what_was_just_restored() -> None:
    limits = make_limits(n_slots=2, n_ctx=256, can_shift=False, window=8)
    residency = Residency(limits)
    text = list(range(200))
    first = admit(residency, limits, 1, text, evaluate=False)
    first.halts = [160]
    residency.store(first, 160)
    residency.observe(StepResult(1, (), oldest=(100,), saved=((1, 10),)))
    residency.store(first, 40)
    residency.observe(StepResult(1, (), oldest=(190,)))
    release(residency, first)
    again = admit(residency, limits, 2, [*text[:170], 1], evaluate=False)
    assert (residency.edits, again.n_cached) == ([CheckpointRestore(1, 0, 160)], 160)
    other = admit(residency, limits, 3, [*text[:130], 2], evaluate=False)
    assert (residency.edits, other.n_cached) == ([], 0)
