"""Who holds which slot and which cells; leases under injected failures."""

import pytest

from runnerd.core.batch import (
    KVRemove,
    KVShift,
    Limits,
    SamplerClose,
    SamplerOpen,
    Sampling,
    StepResult,
)
from runnerd.core.prompt import Prompt
from runnerd.core.residency import Residency
from runnerd.core.sequence import Sequence
from tests.helpers import Image, make_batcher, make_limits, make_prompt, make_sequence, run_all


def make_residency(
    *, n_slots: int = 2, n_ctx: int = 64, n_cells: int | None = None, can_shift: bool = True
) -> tuple[Residency, Limits]:
    limits = make_limits(n_slots=n_slots, n_ctx=n_ctx, n_cells=n_cells, can_shift=can_shift)
    return Residency(limits), limits


def admit(
    residency: Residency, limits: Limits, seq_id: int, prompt: Prompt | list[int], n_store: int
) -> Sequence:
    """Give a sequence a slot, and cells for its first inputs."""
    sequence = make_sequence(seq_id, prompt, limits=limits, shift=True)
    lease = residency.pool.acquire()
    assert lease is not None
    residency.admit(sequence, lease)
    residency.store(sequence, n_store - sequence.n_past)
    residency.check()
    return sequence


def release(residency: Residency, sequence: Sequence) -> None:
    assert sequence.lease is not None
    residency.release(sequence, sequence.lease)
    residency.check()


class Fault(Exception):
    """Injected."""


def fail(*_: object) -> int:
    raise Fault


PLACES = {
    "choose": "runnerd.core.prefix.Search.choose",
    "cut_start": "runnerd.core.prompt.Layout.cut_start",
    "take": "runnerd.core.slots.Lease.take",
    "follow": "runnerd.core.starting.follow",
    "go_back": "runnerd.core.cells.Cells.go_back",
    "forget": "runnerd.core.cells.Cells.forget",
    "position": "runnerd.core.prompt.Layout.position",
    "make_room": "runnerd.core.cells.Cells.make_room",
    "penalty_history": "runnerd.core.sequence.Sequence.penalty_history",
}


@pytest.mark.parametrize("name", PLACES)
def test_a_start_that_fails_gives_its_permit_and_slot_back(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = make_batcher(n_slots=1)
    batcher.submit(make_sequence(1, [1, 2, 3], max_tokens=1))
    run_all(batcher)
    n_used = batcher.residency.ledger.n_used
    batcher.submit(make_sequence(2, [1, 2, 9, 9], max_tokens=1))
    with monkeypatch.context() as patch:
        patch.setattr(PLACES[name], fail)
        for _ in range(3):
            with pytest.raises(Fault):
                batcher.plan(0.0)
            batcher.check()
            assert batcher.residency.pool.n_free == 1
            assert batcher.seq_ids == (2,)
            assert batcher.residency.ledger.n_used <= n_used
    said = run_all(batcher)
    assert said[-1].ending == "length"


def test_a_sequence_whose_start_fails_can_still_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = make_batcher(n_slots=1)
    batcher.submit(make_sequence(1, [1, 2, 3]))
    monkeypatch.setattr(PLACES["choose"], fail)
    with pytest.raises(Fault):
        batcher.plan(0.0)
    assert [emission.ending for emission in batcher.end(1, "cancelled")] == ["cancelled"]
    batcher.check()
    assert batcher.residency.pool.n_free == 1


def test_a_slot_remembers_the_new_prompt() -> None:
    residency, limits = make_residency(n_slots=1)
    release(residency, admit(residency, limits, 1, [1, 2, 3, 4, 5], n_store=5))
    second = admit(residency, limits, 2, [1, 2, 3, 9, 9], n_store=4)
    assert second.n_cached == 3
    release(residency, second)
    assert residency.pool.slots[0].inputs == [1, 2, 3, 9]


def test_a_prefix_ends_before_an_image_that_is_not_the_same() -> None:
    residency, limits = make_residency(n_slots=1)
    first = make_prompt([1, 2], Image(7, 4, n_pos=2), [3])
    release(residency, admit(residency, limits, 1, first, n_store=7))
    residency.edits.clear()
    second = admit(residency, limits, 2, make_prompt([1, 2], Image(8, 4, 2), [3]), n_store=2)
    assert second.n_cached == 2
    assert residency.edits[0] == KVRemove(0, 2)


def test_a_last_image_is_evaluated_anew_as_a_whole() -> None:
    residency, limits = make_residency(n_slots=1)
    prompt = make_prompt([1, 2], Image(7, 4, n_pos=2))
    release(residency, admit(residency, limits, 1, prompt, n_store=6))
    residency.edits.clear()
    assert admit(residency, limits, 2, prompt, n_store=2).n_cached == 2
    assert residency.edits[0] == KVRemove(0, 2)


def test_a_removal_after_an_image_is_at_its_position_not_its_cell() -> None:
    residency, limits = make_residency(n_slots=1)
    image = Image(7, 6, n_pos=2)
    release(residency, admit(residency, limits, 1, make_prompt([1], image, [3, 4]), n_store=9))
    residency.edits.clear()
    admit(residency, limits, 2, make_prompt([1], image, [3, 5]), n_store=8)
    assert residency.edits[0] == KVRemove(0, 1 + 2 + 1)


def test_samplers_open_with_a_sequence_and_close_with_it() -> None:
    residency, limits = make_residency()
    sequence = admit(residency, limits, 4, [1, 2], n_store=2)
    release(residency, sequence)
    assert residency.edits == [SamplerOpen(4, Sampling()), SamplerClose(4)]


def test_idle_slots_forget_only_as_many_as_needed_oldest_first() -> None:
    residency, limits = make_residency(n_slots=3, n_cells=64)
    for seq_id, token in enumerate((1, 2)):
        release(residency, admit(residency, limits, seq_id, [token] * 20, n_store=20))
    assert residency.make_room(40)
    assert [slot.n_past for slot in residency.pool.slots] == [4, 20, 0]
    assert residency.make_room(50)
    assert [slot.n_past for slot in residency.pool.slots] == [0, 14, 0]
    residency.check()


def test_an_idle_slot_that_cannot_forget_its_end_forgets_all() -> None:
    limits = make_limits(n_slots=3, n_ctx=64, n_cells=64, window=8)
    residency = Residency(limits)
    release(residency, admit(residency, limits, 1, [1] * 20, n_store=20))
    assert residency.make_room(50)
    assert residency.pool.slots[0].n_past == 0


def test_an_idle_slot_gives_up_a_medium_whole() -> None:
    residency, limits = make_residency(n_ctx=16, n_cells=16)
    prompt = make_prompt([1, 2], Image(7, 5), [3])
    release(residency, admit(residency, limits, 1, prompt, n_store=8))
    assert residency.make_room(10)
    assert residency.pool.slots[0].n_past == 2
    residency.check()


def test_after_a_stop_string_the_slot_remembers_what_the_client_saw() -> None:
    residency, limits = make_residency(n_slots=1)
    sequence = admit(residency, limits, 1, [1, 2, 3, 4, 5, 6], n_store=6)
    sequence.n_seen = 4
    release(residency, sequence)
    assert residency.pool.slots[0].inputs == [1, 2, 3, 4]


def test_a_window_that_cannot_go_back_to_what_was_seen_stays_where_it_is() -> None:
    limits = make_limits(n_slots=1, window=2)
    residency = Residency(limits)
    sequence = admit(residency, limits, 1, [1, 2, 3, 4, 5, 6], n_store=6)
    residency.observe(StepResult(1, (), oldest=(4,)))
    sequence.n_seen = 4
    release(residency, sequence)
    assert residency.pool.slots[0].n_past == 6


def test_a_slot_that_a_step_emptied_starts_again() -> None:
    residency, limits = make_residency(n_slots=1)
    sequence = admit(residency, limits, 1, [1, 2, 3], n_store=2)
    residency.edits.clear()
    residency.lose(sequence)
    residency.check()
    assert (sequence.n_past, residency.ledger.n_used, residency.edits) == (0, 0, [])


def test_an_input_whose_sample_is_missing_is_evaluated_again() -> None:
    residency, limits = make_residency(n_slots=1)
    sequence = admit(residency, limits, 1, [1, 2, 3], n_store=3)
    residency.edits.clear()
    residency.forget_last(sequence)
    residency.check()
    assert (sequence.n_past, residency.edits) == (2, [KVRemove(0, 2)])


def test_a_shift_drops_the_oldest_half_after_n_keep() -> None:
    residency, limits = make_residency(n_ctx=16)
    sequence = admit(residency, limits, 1, list(range(16)), n_store=16)
    sequence.n_keep = 4
    sequence.inputs.append(99)
    residency.edits.clear()
    residency.shift(sequence)
    assert sequence.inputs == [0, 1, 2, 3, 10, 11, 12, 13, 14, 15, 99]
    assert residency.edits == [KVRemove(0, 4, 10), KVShift(0, 10, None, -6)]
    assert (sequence.n_past, sequence.n_shifts, sequence.n_shifted) == (10, 1, 6)
    residency.check()


def test_what_an_engine_cannot_move_is_evaluated_again() -> None:
    residency, limits = make_residency(n_ctx=16, can_shift=False)
    sequence = admit(residency, limits, 1, list(range(16)), n_store=16)
    sequence.n_keep = 4
    residency.edits.clear()
    residency.shift(sequence)
    assert residency.edits == [KVRemove(0, 4)]
    assert (sequence.n_past, sequence.n_pending) == (4, 6)
    residency.check()


def test_a_shift_takes_positions_from_the_images_around_it() -> None:
    residency, limits = make_residency(n_ctx=16)
    prompt = make_prompt([1], Image(7, 6, n_pos=2), [2], Image(8, 4, n_pos=3), [3, 4, 5, 6])
    sequence = admit(residency, limits, 1, prompt, n_store=16)
    sequence.n_keep = 1
    residency.edits.clear()
    residency.shift(sequence)
    # The cut at input 8 lies on the border of the second image.
    assert residency.edits == [KVRemove(0, 1, 4), KVShift(0, 4, None, -3)]
    assert [(g.start, g.stop) for g in sequence.layout.groups] == [(1, 5)]


def test_no_prompt_starts_from_what_was_shifted() -> None:
    residency, limits = make_residency(n_slots=1, n_ctx=16)
    sequence = admit(residency, limits, 1, list(range(16)), n_store=16)
    sequence.n_keep = 4
    residency.shift(sequence)
    release(residency, sequence)
    assert admit(residency, limits, 2, [0, 1, 2, 3, 10, 11, 12], n_store=4).n_cached == 4


def test_the_youngest_is_suspended_and_a_paused_one_before_it() -> None:
    residency, limits = make_residency(n_slots=3)
    first, second, third = (admit(residency, limits, n, [n] * 8, n_store=8) for n in range(3))
    second.paused = True
    assert residency.suspend_youngest()
    assert residency.suspend_youngest()
    assert [s.n_past for s in (first, second, third)] == [8, 0, 0]
    residency.check()


def test_the_last_with_cells_is_not_suspended() -> None:
    residency, limits = make_residency()
    sequence = admit(residency, limits, 1, [1, 2], n_store=2)
    assert not residency.suspend_youngest()
    assert sequence.suspended_at is None


def test_a_suspended_sequence_resumes_when_another_has_ended() -> None:
    residency, limits = make_residency(n_slots=3)
    first, _, third = (admit(residency, limits, n, [n] * 8, n_store=8) for n in range(3))
    residency.suspend_youngest()
    assert not residency.resume()
    release(residency, first)
    assert residency.resume()
    assert third.suspended_at is None


def test_a_paused_sequence_gives_up_its_cells_when_nobody_else_runs() -> None:
    residency, limits = make_residency(n_ctx=16, n_cells=16)
    sequence = admit(residency, limits, 1, list(range(12)), n_store=12)
    assert not residency.can_hold(10)
    sequence.paused = True
    assert residency.can_hold(10)
    assert sequence.n_past == 0
