"""Which rows share a micro-batch, where slots are apart.

llama.cpp takes rows of slots whose numbers follow each other together, as many of each as the
shortest span has, and looks at as many cells of each slot as the longest has. So sequences that
generate would look back as far as a long one, or a long prompt, beside them. It takes slots
together only where their rows come in ascending order: those in descending order are apart.

A micro-batch of few rows costs as much as it takes to read the weights; cells that are looked at
in vain cost what it takes to read them.

Source: llama_batch_allocr::split_equal, and llama_kv_cache::get_n_kv.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from runnerd.core.batch import Span

LEVEL = 256  # cells; llama.cpp looks at a multiple of that
CELL_BYTE = (
    2.7  # what a byte of a cell costs, to one of the weights (SmolLM2, 2 cores: 10, 28 GB/s)
)
ENOUGH_ROWS = 32  # a micro-batch of more takes as long per row as a larger one
N_TRIED = 16  # kinds of rows that are thought of as one micro-batch, at most


class Rows(NamedTuple):
    """What counts of neighbouring spans that are alike: so many rows each, and levels of cells."""

    n_spans: int
    n_rows: int
    n_levels: int


def level_cost(kv_bytes: int, n_cells: int, weight_bytes: int) -> float:
    """Return what a level of cells costs that a row looks at in vain, in reads of the weights."""
    return CELL_BYTE * LEVEL * kv_bytes / (n_cells * weight_bytes)


def arrange(spans: Sequence[Span], level_cost: float) -> list[int]:
    """Return an order of spans, by index, in which the right ones share a micro-batch.

    `level_cost` is 0 where cells that are masked cost nothing. Spans of one slot stay in order.
    """
    if len({span.slot_id for span in spans}) < len(spans):
        return list(range(len(spans)))
    order: list[int] = []
    for run in _neighbours(spans):
        stop = len(run)
        kinds = tuple(_kind(spans[index], level_cost) for index in run)
        for n_spans in reversed(_cuts(kinds, level_cost)):
            order += run[stop - n_spans : stop]
            stop -= n_spans
    return order


def _neighbours(spans: Sequence[Span]) -> list[list[int]]:
    """Return the runs of spans whose slots follow each other."""
    runs: list[list[int]] = []
    for index in sorted(range(len(spans)), key=lambda index: spans[index].slot_id):
        if runs and spans[index].slot_id == spans[runs[-1][-1]].slot_id + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def _kind(span: Span, level_cost: float) -> tuple[int, int]:
    n_rows = len(span.inputs)
    return n_rows, -(-(span.pos + n_rows) // LEVEL) if level_cost else 0


@lru_cache(maxsize=256)
def _cuts(kinds: tuple[tuple[int, int], ...], level_cost: float) -> tuple[int, ...]:
    """Cut neighbours, of so many rows and levels each, into micro-batches of the least cost.

    Of cuts that cost the same it is that into more. Returns the spans of each.
    """
    alike = [Rows(len([*group]), *kind) for kind, group in groupby(kinds)]
    costs, starts = [0.0], [0]
    for stop in range(1, len(alike) + 1):
        tried = range(stop - 1, max(-1, stop - 1 - N_TRIED), -1)
        cost, start = min(
            ((costs[start] + _cost(alike[start:stop], level_cost), start) for start in tried),
            key=lambda each: (each[0], -each[1]),
        )
        costs.append(cost)
        starts.append(start)
    cuts: list[int] = []
    stop = len(alike)
    while stop:
        cuts.append(sum(rows.n_spans for rows in alike[starts[stop] : stop]))
        stop = starts[stop]
    return tuple(reversed(cuts))


def _cost(together: Sequence[Rows], level_cost: float) -> float:
    """Return what is to be paid for spans together, in reads of the weights."""
    cost, n_done = 0.0, 0
    while together:
        n_rows = min(rows.n_rows for rows in together) - n_done
        deepest = max(rows.n_levels for rows in together)
        n_in_vain = sum(rows.n_spans * (deepest - rows.n_levels) for rows in together)
        cost += level_cost * n_rows * n_in_vain
        cost += n_rows * sum(rows.n_spans for rows in together) < ENOUGH_ROWS
        n_done += n_rows
        together = [rows for rows in together if rows.n_rows > n_done]
    return cost
