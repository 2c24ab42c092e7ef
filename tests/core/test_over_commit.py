"""More asked for than there are cells: those that never end do not keep others out."""

import pytest

from runnerd.core.batcher import Batcher
from runnerd.core.residency import PATIENCE, Residency
from tests.helpers import make_batcher, make_limits, make_sequence, run_step


def endless(n_more: int = 1) -> Batcher:
    """Return a batcher two of whose requests shift for ever, and the cells are for these only."""
    batcher = make_batcher(n_slots=8, n_ctx=512, n_cells=1024, n_batch=128, is_unified=True)
    for seq_id in range(1, 2 + n_more):
        prompt = [100 * seq_id + n % 50 for n in range(300)]
        batcher.submit(
            make_sequence(seq_id, prompt, limits=batcher.limits, shift=True, max_tokens=10**9)
        )
    return batcher


def check_end_within(batcher: Batcher, seq_id: int, n_most: int) -> None:
    for _ in range(n_most):
        if seq_id not in batcher.seq_ids:
            return
        run_step(batcher)
    raise AssertionError(f"sequence {seq_id} is still there after {n_most} steps")


def test_a_suspended_sequence_gets_on_although_nobody_ends() -> None:
    batcher = endless()
    prompt = [700 + n for n in range(300)]
    batcher.submit(make_sequence(3, prompt, limits=batcher.limits, max_tokens=200))
    check_end_within(batcher, 3, 5000)
    assert batcher.seq_ids == (1, 2)


@pytest.mark.parametrize("n_more", [1, 2, 3])
def test_a_newcomer_is_served_although_nobody_ends(n_more: int) -> None:
    batcher = endless(n_more)
    for _ in range(600):
        run_step(batcher)
    newcomer = make_sequence(9, range(900, 910), limits=batcher.limits, max_tokens=5)
    batcher.submit(newcomer)
    check_end_within(batcher, 9, (PATIENCE + 2) * 512)


def test_a_suspended_sequence_asks_for_cells_to_go_on_with_and_for_fewer_each_time() -> None:
    limits = make_limits(n_slots=5, n_ctx=64, n_cells=128, is_unified=True)
    residency = Residency(limits)
    sequences = []
    for seq_id, n_inputs in enumerate((2, 2, 60, 42, 20)):
        sequence = make_sequence(seq_id, [seq_id] * n_inputs, limits=limits)
        lease = residency.pool.acquire()
        assert lease is not None
        residency.admit(sequence, lease)
        residency.store(sequence, n_inputs - 1)
        sequences.append((sequence, lease))
    residency.suspend_youngest()
    suspended, _ = sequences[-1]
    assert residency.n_obtainable() == 22
    residency.release(*sequences[0])
    assert not residency.resume()  # 24 of them do for its inputs, but it asks for 20 + 8
    residency.release(*sequences[1])
    assert residency.resume()  # 26, of 20 + 4
    assert suspended.suspended_at is None
