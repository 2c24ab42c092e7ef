"""What is found for a prompt at a glance is what a long look at everything finds."""

from random import Random

import pytest

from runnerd.core.batch import COPY_ROWS, Adapter, Limits
from runnerd.core.checkpoints import BUDGET_BYTES, Checkpoints
from runnerd.core.following import Pace, find_leader
from runnerd.core.prefix import MIN_WAIT, Search, Start
from runnerd.core.prompt import Layout, common_prefix
from runnerd.core.sequence import Sequence
from runnerd.core.slots import CacheKey, Lease, Slot, SlotPool
from tests.helpers import make_limits, make_sequence

KEYS: tuple[CacheKey, ...] = (("", ()), ("", ()), ("", (Adapter("a"),)))
BEGINNINGS: tuple[list[int], ...] = (
    [],
    [1],
    [1] * 20,
    [*[1] * 20, *[2] * 30],
    [*[1] * 20, *[2] * 30],
)
KINDS = (
    make_limits(n_slots=9, n_ctx=128, is_unified=True),
    make_limits(n_slots=9, n_ctx=128),
    make_limits(n_slots=9, n_ctx=128, window=5),
    make_limits(n_slots=9, n_ctx=128, can_rewind=False),
)


def some_inputs(rng: Random) -> list[int]:
    return [*rng.choice(BEGINNINGS), *[rng.choice((1, 2)) for _ in range(rng.randint(1, 30))]]


def some_pool(rng: Random, checkpoints: Checkpoints) -> SlotPool:
    """Return slots that hold more or less, free and leased, and checkpoints of some of them."""
    pool = SlotPool(9)
    for slot in pool.slots:
        slot.inputs, slot.key = some_inputs(rng), rng.choice(KEYS)
        slot.n_past = rng.choice((0, len(slot.inputs), rng.randint(0, len(slot.inputs))))
        slot.tick, slot.is_leased = pool.next_tick(), rng.random() < 0.5
        slot.oldest = rng.choice((0, rng.randint(0, slot.n_past)))
        slot.moved_at = rng.choice((None, None, rng.randint(0, slot.n_past)))
        if slot.n_past > 0 and rng.random() < 0.5:
            n_inputs = rng.randint(1, slot.n_past)
            checkpoints.add(slot.key, slot.inputs, n_inputs, n_inputs, 0)
    pool.slots[rng.randrange(9)].is_leased = False
    return pool


def all_starts(search: Search, pool: SlotPool) -> list[Start]:
    starts = [search.start(slot) for slot in pool.slots]
    return [start for start in starts if start is not None]


def by_length(start: Start) -> tuple[int, bool, int, int]:
    slot = start.slot
    return start.n_inputs, not slot.is_leased, -slot.n_past, -slot.slot_id


def keeps_half(slot: Slot, start: Start) -> bool:
    return not slot.is_leased and 2 * start.n_inputs >= slot.n_past


@pytest.mark.parametrize("limits", KINDS)
def test_the_longest_start_is_the_longest_of_all_slots_one_by_one(limits: Limits) -> None:
    for seed in range(300):
        rng, known = Random(seed), Checkpoints(BUDGET_BYTES)
        pool, inputs = some_pool(rng, known), some_inputs(rng)
        search = Search(limits, pool, known, KEYS[0], inputs, Layout())
        starts, more_than = all_starts(search, pool), rng.choice((0, 0, rng.randint(0, 60)))
        but = rng.choice((None, *pool.slots))
        longer = [s for s in starts if s.slot is not but and s.n_inputs > more_than]
        assert search.best(more_than, but) == max(longer, key=by_length, default=None)
        in_place = [start for start in starts if keeps_half(start.slot, start)]
        found = search.best_in_place()
        assert found in in_place or found is None
        if found is None or found.slot.n_past > 0 or limits.is_unified:
            assert found == max(in_place, key=by_length, default=None)
        else:
            n_beside = [pool.n_beside(each.slot) for each in in_place if each.slot.n_past == 0]
            assert pool.n_beside(found.slot) == max(n_beside)


def some_sequence(seq_id: int, rng: Random, earlier: list[Sequence]) -> Sequence:
    """Return a sequence in the midst of anything."""
    adapters = rng.choice(KEYS)[1]
    sequence = make_sequence(seq_id, some_inputs(rng), limits=KINDS[0], adapters=adapters)
    sequence.lease = Lease(SlotPool(1))
    sequence.lease.take(Slot(0, n_past=rng.choice((0, rng.randint(0, len(sequence.inputs) - 1)))))
    sequence.paused, sequence.ending = rng.random() < 0.1, rng.choice((None, None, "cancelled"))
    sequence.suspended_at = rng.choice((None, None, 1))
    sequence.follows = rng.choice((None, None, *earlier))
    sequence.n_shifts, sequence.n_keep = rng.choice((0, 0, 1)), rng.randint(0, 40)
    return sequence


def promised(sequence: Sequence, other: Sequence) -> int:
    """Return how much of a prompt is yet to come from another sequence, with what is before."""
    is_out = other.paused or other.ending is not None or other.suspended_at is not None
    is_alike = other.options.cache_key == sequence.options.cache_key
    n_most = len(sequence.inputs) - 1
    n_clean = n_most if other.n_shifts == 0 else min(n_most, other.n_keep)
    n_common = common_prefix(sequence.inputs, other.inputs, n_clean)
    is_worth = is_alike and not is_out and other.n_pending > 1 and n_common > other.n_past
    return n_common if is_worth else 0


@pytest.mark.parametrize("limits", KINDS[:2])
def test_the_leader_is_the_best_of_all_one_by_one(limits: Limits) -> None:
    n_least = MIN_WAIT if limits.is_unified else COPY_ROWS
    n_found = 0
    for seed in range(1000):
        rng, others = Random(seed), list[Sequence]()
        for seq_id in range(rng.randint(0, 9)):
            others.append(some_sequence(seq_id, rng, others))
        sequence = make_sequence(99, some_inputs(rng), limits=KINDS[0])
        n_cached = rng.choice((0, 0, 5))
        pace = Pace(rng.choice((1, 30, 500)), rng.randint(0, 3), rng.randint(0, 200))
        n_own = len(sequence.inputs) - n_cached
        ranked = [
            (n_common, other.follows is None, -index)
            for index, other in enumerate(others)
            if (n_common := promised(sequence, other)) >= n_cached + n_least
            and pace.repays(n_common - n_cached, n_common - other.n_past, n_own)
        ]
        n_common, _, index = max(ranked, default=(0, True, 1))
        expected = (others[-index], n_common) if ranked else None
        assert find_leader(sequence, others, n_cached, limits, pace) == expected
        n_found += bool(ranked)
    assert n_found > 60, "hardly anybody could be waited for"


def test_a_prompt_of_one_input_finds_nothing_and_waits_for_nobody() -> None:
    limits = KINDS[0]
    pool, known = some_pool(Random(1), Checkpoints(BUDGET_BYTES)), Checkpoints(BUDGET_BYTES)
    one = make_sequence(1, [1])
    search = Search(limits, pool, known, KEYS[0], one.inputs, one.layout)
    assert search.best(0) is None
    assert find_leader(one, [some_sequence(2, Random(1), [])], 0, limits, Pace(9, 0, 0)) is None
