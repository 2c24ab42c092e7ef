"""How a sequence comes to its first inputs: from what is cached, or by waiting for another."""

from collections.abc import Iterable

from runnerd.core.batch import COPY_ROWS
from runnerd.core.cells import Cells
from runnerd.core.checkpoints import halts_of
from runnerd.core.following import Pace, find_leader, follow
from runnerd.core.prefix import Search
from runnerd.core.sequence import Sequence
from runnerd.core.slots import Lease, Slot


def search_for(sequence: Sequence, cells: Cells) -> Search:
    """Return a search for what is cached of a sequence's inputs."""
    key = sequence.options.cache_key
    return Search(
        cells.limits, cells.pool, cells.checkpoints, key, sequence.inputs, sequence.layout
    )


def take_slot(
    sequence: Sequence, lease: Lease, earlier: Iterable[Sequence], cells: Cells, pace: Pace
) -> None:
    """Take the slot that suits a sequence best, and start it there or let it wait."""
    search = search_for(sequence, cells)
    slot, start = search.choose()
    lease.take(slot)
    waits = follow(sequence, earlier, start.n_inputs, cells.limits, pace)
    if start.slot is slot and not start.from_nothing:
        cells.go_back(slot, start)
    else:
        cells.forget(slot, 0)
        if not waits:
            _hand_over(sequence, slot)
            cells.fill(slot, start)
    sequence.lease = lease
    _begin(sequence, lease, search, cells)


def go_on(sequence: Sequence, earlier: Iterable[Sequence], cells: Cells, pace: Pace) -> None:
    """Start a sequence that has a slot from what is cached by now, or let it wait for more."""
    assert sequence.lease is not None
    slot, search = sequence.lease.slot, search_for(sequence, cells)
    sequence.follows, sequence.n_awaited = None, 0
    n_worth = 1 if cells.limits.is_unified else COPY_ROWS
    start = search.best(slot.n_past + n_worth - 1, but=slot)
    n_cached = slot.n_past if start is None else start.n_inputs
    kept = search.kept(slot, n_cached)
    if kept is not None:
        start, n_cached = kept, kept.n_inputs
    if follow(sequence, earlier, n_cached, cells.limits, pace):
        return
    if start is not None:
        cells.fill(slot, start)
    _begin(sequence, sequence.lease, search, cells)


def _hand_over(sequence: Sequence, slot: Slot) -> None:
    slot.inputs, slot.layout = sequence.inputs, sequence.layout
    slot.key = sequence.options.cache_key


def _begin(sequence: Sequence, lease: Lease, search: Search, cells: Cells) -> None:
    """Hand a slot over to a sequence that goes on from what it holds."""
    slot, layout = lease.slot, sequence.layout
    _hand_over(sequence, slot)
    if sequence.is_fresh:
        sequence.n_cached = slot.n_past
    if cells.limits.needs_checkpoints:
        known = [checkpoint.n_inputs for checkpoint in search.checkpoints]
        n_inputs = len(sequence.inputs)
        own = halts_of(sequence.borders, layout, n_inputs, slot.n_past, known)
        asked = (halt for halt in sequence.halts if halt > slot.n_past)  # by those that follow
        sequence.halts = sorted({*own, *asked})


def n_shareable(sequence: Sequence, earlier: Iterable[Sequence], cells: Cells, pace: Pace) -> int:
    """Return how many cells a sequence will share with others that hold or evaluate them."""
    if not cells.limits.is_unified:
        return 0
    start = search_for(sequence, cells).best(0)
    n_cached = 0 if start is None else start.n_inputs
    found = find_leader(sequence, earlier, n_cached, cells.limits, pace)
    if found is not None:
        return found[1]
    return 0 if start is None else cells.n_in_use(start)


def n_needed(sequence: Sequence, cells: Cells) -> int:
    """Return the cells that a sequence needs for its inputs, besides those it waits to share."""
    if sequence.follows is None or not cells.limits.is_unified:
        return sequence.n_pending
    return len(sequence.inputs) - max(sequence.n_past, sequence.n_awaited)
