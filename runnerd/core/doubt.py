"""Rows of no numbers: who may have made them, and what has to be evaluated again.

What is no number in a cell is in every row that reads the cell, and where slots are not apart in
everybody's: a pass multiplies what it masks by 0, and a NaN stays one. So who is given none is
doubted at first: it starts over, and runs alone until it is given a token. Given none then, it
fails.
"""

from runnerd.core.cells import Cells
from runnerd.core.following import abandon
from runnerd.core.sequence import Sequence


def doubted_alone(active: list[Sequence]) -> list[Sequence]:
    """Return the first that is doubted, alone, of those that could run; all if none is."""
    doubted = [s for s in active if s.is_doubted]
    return doubted[:1] or active


def start_over(spoiled: list[Sequence], running: list[Sequence], cells: Cells) -> None:
    """Let go of all that may hold what is no number; who needs it evaluates it again.

    That are the slots of the sequences that were `spoiled`, and what they may have begun from.
    Where all slots are in one cache it is everything: nobody knows whose the first of them were.
    Somebody amid its prompt was given nothing yet, and is doubted as well.
    """
    is_unified = cells.limits.is_unified
    keys = {sequence.options.cache_key for sequence in spoiled}
    for slot in cells.pool.idle():
        if is_unified or slot.key in keys:
            cells.discard(slot)
    for sequence in running:
        if is_unified or sequence in spoiled:
            if sequence.n_past > 0 and not sequence.is_decoding:
                sequence.is_doubted = True
            cells.discard(sequence.slot)
            abandon(sequence, running)
