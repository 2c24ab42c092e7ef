"""Waiting for a prefix that another sequence is evaluating: who waits, for whom, how long."""

import pytest

from runnerd.core.batch import (
    COPY_ROWS,
    CheckpointRestore,
    CheckpointSave,
    KVCopy,
    Limits,
    SamplerOpen,
)
from runnerd.core.batcher import Batcher
from runnerd.core.prefix import MIN_WAIT
from runnerd.core.prompt import Prompt
from runnerd.core.residency import Residency
from runnerd.core.sequence import Options, Sequence
from runnerd.core.sequence import admit as make
from tests.helpers import ByteVocabulary, make_limits, make_sequence, rows_of, run_all, run_step

UNIFIED = make_limits(n_slots=5, n_ctx=128, is_unified=True)
SPLIT = make_limits(n_slots=5, n_ctx=128)
LONG = list(range(100))


def admit(
    residency: Residency, limits: Limits, seq_id: int, inputs: list[int], scope: str = ""
) -> Sequence:
    options = Options(cache_scope=scope)
    sequence = make(seq_id, Prompt(tuple(inputs)), options, limits, 0.0)
    lease = residency.pool.acquire()
    assert lease is not None
    residency.admit(sequence, lease)
    residency.check()
    return sequence


def release(residency: Residency, sequence: Sequence) -> None:
    assert sequence.lease is not None
    residency.release(sequence, sequence.lease)
    residency.check()


def edits_of(residency: Residency) -> list[object]:
    """Return the edits of cells so far."""
    return [edit for edit in residency.edits if not isinstance(edit, SamplerOpen)]


def test_a_newcomer_waits_for_the_prefix_that_another_evaluates() -> None:
    residency = Residency(UNIFIED)
    first = admit(residency, UNIFIED, 1, LONG)
    residency.store(first, 30)
    second = admit(residency, UNIFIED, 2, [*LONG[:80], 200, 201])
    assert second.follows is first
    assert residency.active() == [first]
    residency.store(first, 49)
    assert residency.resume()
    assert second.follows is first
    residency.store(first, 1)
    assert residency.resume()
    residency.check()
    assert residency.active() == [first, second]
    assert (second.n_past, second.n_cached) == (80, 80)
    assert edits_of(residency) == [KVCopy(0, 1, 80)]


def test_completions_of_one_prompt_share_its_prefill() -> None:
    batcher = Batcher(UNIFIED, ByteVocabulary(), 0.05)
    for seq_id in range(5):
        batcher.submit(make_sequence(seq_id, LONG, limits=UNIFIED, max_tokens=3))
    run_all(batcher)
    assert batcher.n_prefilled == 100 + 4


def test_a_chat_and_another_with_the_same_system_prompt_share_its_prefill() -> None:
    batcher = Batcher(SPLIT, ByteVocabulary(), 0.05)
    for seq_id in range(3):
        prompt = [*LONG, *[200 + seq_id] * 10]
        batcher.submit(make_sequence(seq_id, prompt, limits=SPLIT, max_tokens=3))
    run_all(batcher)
    assert batcher.n_prefilled == 100 + 3 * 10


@pytest.mark.parametrize(("limits", "n_least"), [(UNIFIED, MIN_WAIT), (SPLIT, COPY_ROWS)])
def test_little_is_not_waited_for(limits: Limits, n_least: int) -> None:
    for n_shared, waits in ((n_least - 1, False), (n_least, True)):
        residency = Residency(limits)
        first = admit(residency, limits, 1, LONG)
        second = admit(residency, limits, 2, [*LONG[:n_shared], 200])
        assert (second.follows is first) == waits


def test_nobody_waits_for_what_is_cached_or_another_tenants() -> None:
    residency = Residency(UNIFIED)
    first = admit(residency, UNIFIED, 1, LONG)
    assert admit(residency, UNIFIED, 2, LONG, scope="tenant").follows is None
    residency.store(first, 90)
    assert admit(residency, UNIFIED, 3, [*LONG[:90], 200]).follows is None


def test_nobody_waits_for_one_that_is_paused_or_suspended() -> None:
    residency = Residency(UNIFIED)
    paused = admit(residency, UNIFIED, 1, LONG)
    suspended = admit(residency, UNIFIED, 2, [7] * 50)
    residency.suspend_youngest()
    assert suspended.suspended_at is not None
    paused.paused = True
    assert admit(residency, UNIFIED, 3, LONG).follows is None
    assert admit(residency, UNIFIED, 4, [7] * 50).follows is None


def test_the_one_with_the_longest_prefix_is_followed_even_if_it_waits_itself() -> None:
    residency = Residency(UNIFIED)
    first = admit(residency, UNIFIED, 1, LONG)
    second = admit(residency, UNIFIED, 2, [*LONG[:50], *range(200, 240)])
    third = admit(residency, UNIFIED, 3, [*LONG[:50], *range(200, 240)])
    fourth = admit(residency, UNIFIED, 4, [*LONG[:40], 250])
    assert (second.follows, third.follows, fourth.follows) == (first, second, first)


@pytest.mark.parametrize("way", ["ends", "pauses", "is suspended"])
def test_when_the_one_in_front_does_not_get_on_the_next_takes_over(way: str) -> None:
    residency = Residency(UNIFIED)
    first, second, third = (admit(residency, UNIFIED, n, LONG) for n in range(3))
    residency.store(first, 30)
    assert (second.follows, third.follows) == (first, first)
    match way:
        case "ends":
            release(residency, first)
        case "pauses":
            first.paused = True
        case _:
            first.paused = True  # so that it gives way before the youngest
            residency.suspend_youngest()
            residency.check()
            first.paused = False
    residency.resume()
    residency.check()
    assert second.follows is None
    assert second.n_past == (0 if way == "is suspended" else 30)
    assert third.follows is second


def test_one_that_waits_can_end() -> None:
    residency = Residency(UNIFIED)
    first, second = (admit(residency, UNIFIED, n, LONG) for n in range(2))
    release(residency, second)
    residency.store(first, 100)
    assert residency.resume()
    assert residency.active() == [first]


def test_one_that_waits_is_promised_only_the_cells_it_will_not_share() -> None:
    limits = make_limits(n_slots=3, n_ctx=128, n_cells=128, is_unified=True)
    residency = Residency(limits)
    admit(residency, limits, 1, LONG)
    second = make_sequence(2, [*LONG, 1, 2], limits=limits)
    assert residency.can_take(second)
    admit(residency, limits, 2, [*LONG, 1, 2])
    assert residency.n_obtainable() == 128 - 100 - 2


def test_a_state_that_cannot_go_back_stops_where_another_waits_for_it() -> None:
    limits = make_limits(
        n_slots=3, n_ctx=128, n_batch=64, is_unified=True, can_rewind=False, can_shift=False
    )
    batcher = Batcher(limits, ByteVocabulary(), 0.05)
    batcher.submit(make_sequence(1, LONG, limits=limits, max_tokens=3))
    batcher.submit(make_sequence(2, [*LONG[:60], 201, 202], limits=limits, max_tokens=3))
    step, _ = run_step(batcher)
    assert rows_of(step) == {1: 60}
    step, _ = run_step(batcher)
    edits = [edit for edit in step.edits if not isinstance(edit, SamplerOpen)]
    assert edits[0] == CheckpointSave(1, 0)
    assert edits[1:] == [KVCopy(0, 1, 60)]
    assert rows_of(step)[1] <= 40
    assert not any(isinstance(edit, CheckpointRestore) for edit in step.edits)


def test_whoever_waits_for_one_that_waits_finds_its_checkpoint_too() -> None:
    limits = make_limits(
        n_slots=3, n_ctx=256, n_batch=64, is_unified=True, can_rewind=False, can_shift=False
    )
    batcher = Batcher(limits, ByteVocabulary(), 0.05)
    middle = [*LONG[:60], *range(200, 290)]
    last = [*middle[:130], 1, 2, 3]
    for seq_id, prompt in enumerate((LONG, middle, last)):
        batcher.submit(make_sequence(seq_id, prompt, limits=limits, max_tokens=1))
    run_all(batcher)
    assert batcher.n_prefilled == len(LONG) + (len(middle) - 60) + (len(last) - 130)
