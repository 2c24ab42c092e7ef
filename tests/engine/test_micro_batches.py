"""Which rows share a micro-batch: the cheapest way, by trying all of them."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnerd.core.batch import Span
from runnerd.engine.llama.micro_batches import ENOUGH_ROWS, LEVEL, arrange, level_cost

Kind = tuple[int, int]  # rows, and levels of cells

kinds = st.tuples(st.sampled_from([1, 1, 1, 7, 40]), st.integers(1, 6))


def span(slot_id: int, kind: Kind = (1, 1)) -> Span:
    n_rows, n_levels = kind
    return Span(slot_id, slot_id, n_levels * LEVEL - n_rows, (1,) * n_rows)


def micro_batches(spans: list[Span], order: list[int]) -> list[list[int]]:
    """Return the slots that llama.cpp takes together first, as it goes through the order."""
    together: list[list[int]] = []
    for index in order:
        slot_id = spans[index].slot_id
        if together and slot_id == together[-1][-1] + 1:
            together[-1].append(slot_id)
        else:
            together.append([slot_id])
    return together


def cuts(n_spans: int) -> Iterator[list[range]]:
    """Yield all ways to cut a row of spans into runs."""
    for bits in range(2 ** (n_spans - 1)):
        stops = [at for at in range(1, n_spans) if bits >> (at - 1) & 1]
        yield [range(*pair) for pair in pairwise([0, *stops, n_spans])]


def price(together: list[Kind], cost: float) -> float:
    """Return what llama.cpp's rule makes of spans together, row by row."""
    price, last = 0.0, 0
    for stop in sorted({n_rows for n_rows, _ in together}):
        here = [levels for n_rows, levels in together if n_rows >= stop]
        price += cost * (stop - last) * sum(max(here) - levels for levels in here)
        price += (stop - last) * len(here) < ENOUGH_ROWS
        last = stop
    return price


def test_rows_that_are_alike_share_one() -> None:
    spans = [span(slot_id) for slot_id in range(8)]
    assert arrange(spans, 0.1) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_those_between_free_slots_stay_in_order() -> None:
    spans = [span(slot_id) for slot_id in (0, 1, 3, 6, 7)]
    assert arrange(spans, 0.1) == [0, 1, 2, 3, 4]


def test_a_prompt_has_its_own_whatever_is_on_its_sides() -> None:
    spans = [span(0), span(1), span(2, (40, 5)), span(3)]
    assert micro_batches(spans, arrange(spans, 0.1)) == [[3], [2], [0, 1]]


@pytest.mark.parametrize(("n_levels", "expected"), [(3, [[0, 1, 2]]), (12, [[2], [0, 1]])])
def test_a_long_sequence_has_its_own_once_that_is_worth_it(
    n_levels: int, expected: list[list[int]]
) -> None:
    spans = [span(0), span(1), span(2, (1, n_levels))]
    assert micro_batches(spans, arrange(spans, 0.1)) == expected


def test_where_masked_cells_cost_nothing_all_that_generate_share_one() -> None:
    spans = [span(0), span(1, (1, 100)), span(2)]
    assert micro_batches(spans, arrange(spans, 0.0)) == [[0, 1, 2]]


def test_spans_of_one_slot_stay_in_order() -> None:
    spans = [span(1), span(0, (40, 1)), span(0, (7, 2))]
    assert arrange(spans, 0.1) == [0, 1, 2]


def test_a_level_costs_what_its_cells_weigh_beside_the_model() -> None:
    assert level_cost(1000 * 2**20, 1000, 256 * 2**20) == pytest.approx(2.7)


@given(st.lists(kinds, min_size=1, max_size=7), st.sampled_from([0.0, 0.1, 0.4, 2.0]))
def test_no_other_way_to_cut_neighbours_is_cheaper(kinds: list[Kind], cost: float) -> None:
    spans = [span(slot_id, kind) for slot_id, kind in enumerate(kinds)]
    chosen = micro_batches(spans, arrange(spans, cost))
    found = sum(price([kinds[slot_id] for slot_id in slots], cost) for slots in chosen)
    prices = [
        sum(price([kinds[i] for i in run], cost) for run in runs) for runs in cuts(len(kinds))
    ]
    assert found == pytest.approx(min(prices))


@given(st.dictionaries(st.integers(0, 12), kinds, min_size=1))
def test_each_span_comes_once_and_only_neighbours_share(
    chosen: dict[int, Kind],
) -> None:
    spans = [span(slot_id, kind) for slot_id, kind in chosen.items()]
    order = arrange(spans, 0.1)
    assert sorted(order) == list(range(len(spans)))
    for slots, following in pairwise(micro_batches(spans, order)):
        assert slots == list(range(slots[0], slots[0] + len(slots)))
        assert following[0] != slots[-1] + 1


def test_many_of_different_lengths_are_cut_soon() -> None:
    spans = [span(slot_id, (1, slot_id % 7 + 1)) for slot_id in range(256)]
    assert sorted(arrange(spans, 0.1)) == list(range(256))
