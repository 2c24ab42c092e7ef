"""Who has more to evaluate than the token just sampled: the few that newcomers are weighed with."""

from runnerd.core.behind import Behind
from runnerd.core.sequence import Sequence
from runnerd.core.slots import Lease, Slot, SlotPool
from tests.helpers import make_batcher, make_sequence, run_step


def generating(seq_id: int) -> Sequence:
    """Return a sequence all of whose inputs are cached but for the token just sampled."""
    sequence = make_sequence(seq_id, [1, 2, 3])
    sequence.lease = Lease(SlotPool(1))
    sequence.lease.take(Slot(0, sequence.inputs, n_past=2))
    sequence.n_generated = 1
    return sequence


def behind_of(*running: Sequence) -> Behind:
    behind = Behind([*running])
    behind.look_again()
    return behind


def test_who_generates_is_not_behind() -> None:
    first, second = generating(1), make_sequence(2, [1, 2, 3])
    behind = behind_of(first, second)
    assert behind.sequences == [second]
    assert behind.n_generating == 1


def test_the_last_input_of_a_prompt_is_not_a_token_just_sampled() -> None:
    sequence = generating(1)
    sequence.n_generated = 0
    assert behind_of(sequence).sequences == [sequence]


def test_who_is_suspended_waits_or_is_doubted_is_behind() -> None:
    suspended, following, doubted, other = map(generating, range(4))
    suspended.suspended_at, following.follows, doubted.is_doubted = 1, other, True
    assert behind_of(suspended, following, doubted, other).sequences == [
        suspended,
        following,
        doubted,
    ]


def test_who_comes_is_behind_until_it_generates() -> None:
    running = [generating(1)]
    behind = Behind(running)
    running.append(generating(2))
    behind.add(running[-1])
    assert behind.sequences == running[1:]
    behind.tidy()
    assert behind.sequences == []
    behind.check()


def test_who_lost_its_cells_is_behind_in_its_place() -> None:
    first, second = generating(1), make_sequence(2, [1, 2, 3])
    behind = behind_of(first, second)
    first.slot.n_past = 0
    behind.look_again()
    assert behind.sequences == [first, second]
    behind.check()


def test_who_ends_is_behind_no_longer() -> None:
    first, second, generates = make_sequence(1, [1, 2]), make_sequence(2, [1, 2]), generating(3)
    running = [first, second, generates]
    behind = Behind(running)
    behind.look_again()
    assert behind.sequences == [first, second]
    for ended in (first, generates):
        running.remove(ended)
        behind.remove(ended)
    assert behind.sequences == [second]
    behind.check()


def test_each_that_generates_is_promised_one_cell() -> None:
    batcher = make_batcher(n_slots=3, n_ctx=16, n_cells=40, is_unified=True)
    for seq_id in range(2):
        batcher.submit(make_sequence(seq_id, [seq_id, 2, 3], max_tokens=9))
    run_step(batcher)
    assert batcher.residency.n_obtainable() == 40 - 2 * 3 - 2
