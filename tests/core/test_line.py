"""The waiting line: order within a class, shares among classes, places known."""

from itertools import pairwise, repeat

from hypothesis import given
from hypothesis import strategies as st

from runnerd.core.line import STRIDES, Line
from runnerd.core.sequence import Priority
from tests.helpers import make_sequence

HIGH, NORMAL, LOW = STRIDES
priorities = st.sampled_from(list(STRIDES))


def line_of(*waiting: Priority) -> Line:
    """Return a line in which sequences 0, 1, 2, ... wait with these priorities."""
    line = Line()
    for seq_id, priority in enumerate(waiting):
        line.append(make_sequence(seq_id, [1], priority=priority))
    return line


def serve(line: Line, n: int) -> list[int]:
    return [line.serve().seq_id for _ in range(n)]


def test_those_of_one_class_are_served_as_they_came() -> None:
    assert serve(line_of(*repeat(LOW, 5)), 5) == [0, 1, 2, 3, 4]


def test_a_higher_class_goes_first() -> None:
    assert serve(line_of("low", "normal", "high"), 3) == [2, 1, 0]


def test_the_first_of_a_class_goes_before_no_higher_one_that_waits() -> None:
    line = line_of("normal")
    serve(line, 1)
    for seq_id, priority in enumerate((NORMAL, LOW, NORMAL, HIGH, HIGH), 1):
        line.append(make_sequence(seq_id, [1], priority=priority))
    assert serve(line, 5) == [4, 5, 1, 3, 2]


def test_while_all_classes_wait_they_are_served_16_to_4_to_1() -> None:
    line = line_of(*repeat(LOW, 50), *repeat(NORMAL, 50), *repeat(HIGH, 50))
    served = [line.serve().options.priority for _ in range(42)]
    counts = {priority: served.count(priority) for priority in STRIDES}
    assert counts == {"high": 32, "normal": 8, "low": 2}


def test_the_lowest_class_is_not_starved_by_newcomers_of_the_highest() -> None:
    line = line_of("high", "low", "low")
    served: list[int] = []
    for seq_id in range(3, 103):
        line.append(make_sequence(seq_id, [1], priority="high"))
        served += serve(line, 1)
    at = [served.index(1), served.index(2)]
    assert at[0] <= 17
    assert all(later - earlier <= 17 for earlier, later in pairwise(at))


def test_a_class_saves_no_turns_up_while_nobody_waits_in_it() -> None:
    line = line_of(*repeat(NORMAL, 100))
    serve(line, 90)
    for seq_id in range(100, 140):
        line.append(make_sequence(seq_id, [1], priority="high"))
    assert [seq_id < 100 for seq_id in serve(line, 11)].count(True) == 2


def test_one_that_leaves_lets_those_behind_move_up() -> None:
    line = line_of("normal", "normal", "normal")
    _, middle, last = line
    assert line.n_ahead(last) == 2
    line.remove(middle)
    assert line.n_ahead(last) == 1
    assert [sequence.seq_id for sequence in line] == [0, 2]
    assert len(line) == 2


@given(st.lists(st.one_of(priorities, st.integers(0, 50)), max_size=60))
def test_the_places_and_the_order_told_are_those_of_serving(calls: list[Priority | int]) -> None:
    """A priority comes, an even number is served, an odd one leaves."""
    line, waiting, n_made = Line(), dict[int, Priority](), 0
    for call in calls:
        if isinstance(call, str):
            waiting[n_made] = call
            line.append(make_sequence(n_made, [1], priority=call))
            n_made += 1
        elif call % 2 == 0 and waiting:
            first = line.first
            assert line.serve() is first
            same = [seq_id for seq_id, p in waiting.items() if p == first.options.priority]
            assert first.seq_id == same[0]
            del waiting[first.seq_id]
        elif waiting:
            gone = [*line][call % len(waiting)]
            line.remove(gone)
            del waiting[gone.seq_id]
    told = [*line]
    assert [line.n_ahead(sequence) for sequence in told] == list(range(len(waiting)))
    assert [line.serve() for _ in told] == told
    assert len(line) == 0
