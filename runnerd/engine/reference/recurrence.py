"""A recurrent layer: one state per slot, a little of which fades with every row."""

import numpy as np
from numpy.typing import NDArray

from runnerd.engine.reference.model import whole

Floats = NDArray[np.float64]

FADE = 256.0  # unit of what stays of a state


def carried(state: Floats, values: Floats) -> Floats:
    """Run rows through a state, changing it; return what it was after each row.

    From the first dimension to the last more of the state stays, so that some dimensions know
    the last rows and some know many.
    """
    stays = whole(np.linspace(0.5, 0.97, len(state)) * FADE)
    seen = np.empty_like(values)
    for row, value in enumerate(values):
        state[:] = whole(state * stays / FADE) + value
        seen[row] = state
    return seen
