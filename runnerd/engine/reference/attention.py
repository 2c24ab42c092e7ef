"""Attention over cells: keys turned by their positions, and a mean weighted by fit."""

import numpy as np
from numpy.typing import NDArray

from runnerd.engine.reference.model import ONE, whole

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

TURN = 1024.0  # unit of sines and cosines
STEPS = 16  # steps of attention scores, per factor e of weight
# Weight by distance from the best score; the last, for hidden cells and far ones, is nothing.
FALL = whole(np.exp(-np.arange(16 * STEPS + 1) / STEPS) * 2**16)
FALL[-1] = 0.0


class Rotation:
    """Turns vectors by positions below `n_ctx` (rotary embedding), in whole numbers."""

    def __init__(self, n_ctx: int, head_dim: int) -> None:
        pace = 100.0 ** -np.linspace(0, 1, head_dim // 2, endpoint=False)
        angles = np.outer(np.arange(n_ctx), pace)
        self._cos, self._sin = whole(np.cos(angles) * TURN), whole(np.sin(angles) * TURN)

    def turn(self, heads: Floats, positions: list[int]) -> Floats:
        """Turn vectors, the last two axes being rows and dimensions, by their rows' positions."""
        cos, sin = self._cos[positions], self._sin[positions]
        first, second = np.split(heads, 2, axis=-1)
        turned = np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
        return whole(turned / TURN)


def weighted(query: Floats, key: Floats, value: Floats, visible: Bools) -> Floats:
    """Return the mean of the values a row sees, weighted by the fit of query and key."""
    fit = query @ key.swapaxes(1, 2) / (ONE * ONE * np.sqrt(query.shape[-1]))
    scores = np.where(visible, whole(fit * STEPS), -np.inf)
    distance = np.minimum(scores.max(axis=-1, keepdims=True) - scores, len(FALL) - 1)
    weights = FALL[distance.astype(np.intp)]
    return whole(weights @ value / weights.sum(axis=-1, keepdims=True))
