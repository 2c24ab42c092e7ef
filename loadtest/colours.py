"""A vision tower that names colours, in closed form: nothing in it was trained.

A patch's mean red, green and blue become nine indicators (each channel is low, mid or high), and
these become the name of a colour, of which the text model's own embedding is then the row.

    patch embedding    mean of the patch's pixels per channel, from 0 to 1
    feed-forward of block 0    two thresholds per channel; gelu(S x) / S is a ReLU for a large S,
                               and the difference of two ReLUs is a step
    feed-forward of block 1    a unit relu(r + g + b - 2) per cell of the 3 x 3 x 3 colour cube
    position embedding    silences all rows but a few: a text model that was not trained on
                          pictures loses its way in many equal rows

Norms are made linear: with an epsilon far above the variance they only subtract the mean, and
that is 0 because every hidden value has its negative in the other half. Attention is zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from loadtest.gguf import Floats, Tensor

NAMES = (
    "black", "white", "gray", "red", "green", "blue", "yellow", "orange", "purple", "pink", "brown",
)  # fmt: skip
CELLS = (  # the name of each cell: by red, a line each, then by green, then by blue
    "black", "blue", "blue", "green", "green", "blue", "green", "green", "blue",
    "brown", "purple", "purple", "brown", "gray", "blue", "green", "green", "blue",
    "red", "pink", "purple", "orange", "pink", "pink", "yellow", "yellow", "white",
)  # fmt: skip
THRESHOLDS = (0.30, 0.80)  # between low, mid and high
RAMP = 0.03  # half of the width in which a step rises
SHARPNESS = 64.0
EPSILON = 1e4  # far above the variance of any row
LINEAR = EPSILON**0.5  # the weight that makes up for it

# Hidden values of the first half: channels, their levels, the names, and one that says "silent".
CHANNEL, LEVEL, NAME = 0, 3, 12
SILENT = NAME + len(NAMES)
N_UNITS = 48  # of a feed-forward; never n_hidden: llama.cpp would swap up and down


@dataclass(frozen=True, slots=True)
class Unit:
    """A ReLU of a feed-forward: what it adds up, and what it adds to the hidden values."""

    weights: Mapping[int, float]
    bias: float
    gains: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Tower:
    """The sizes of a vision tower. Blocks after the second do nothing but take their time."""

    patch: int
    n_hidden: int = 64
    n_blocks: int = 2

    @property
    def n_units(self) -> int:
        """Width of a feed-forward."""
        return N_UNITS if self.n_hidden == 64 else 4 * self.n_hidden

    def mirror(self, rows: npt.NDArray[np.float64]) -> Floats:
        """Put the negatives of the first hidden values into the other half."""
        half = np.zeros((self.n_hidden // 2, *rows.shape[1:]))
        half[: len(rows)] = rows
        return np.concatenate([half, -half]).astype(np.float32)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Return the tensors by name."""
        kernel = np.zeros((3, 3, self.patch, self.patch))
        for channel in range(3):
            kernel[CHANNEL + channel, channel] = 1 / self.patch**2
        yield "v.patch_embd.weight", self.mirror(kernel)
        levels, names = _level_units(), _name_units()
        for block in range(self.n_blocks):
            for name in ("ln1", "ln2"):
                yield f"v.blk.{block}.{name}.weight", np.full(self.n_hidden, LINEAR, np.float32)
            for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
                nothing = np.zeros((self.n_hidden, self.n_hidden), np.float16)
                yield f"v.blk.{block}.{name}.weight", nothing
            units = (levels, names)[block] if block < 2 else ()
            low = [LEVEL + 3 * channel for channel in range(3)] if block == 0 else []
            for name, tensor in self._feed_forward(units, low):
                yield f"v.blk.{block}.{name}", tensor

    def silence(self, grid: int, merge: int, speakers: int) -> Floats:
        """Return a position embedding under which only speakers x speakers rows say a colour."""
        step = grid // speakers
        is_silent = np.ones((grid, grid))
        is_silent[step // 2 :: step, step // 2 :: step] = 0
        rows = np.zeros((SILENT + 1, (grid * merge) ** 2))
        rows[SILENT] = np.kron(is_silent, np.ones((merge, merge))).ravel()
        return np.ascontiguousarray(self.mirror(rows).T)

    def _feed_forward(
        self, units: tuple[Unit, ...], set_to_one: list[int]
    ) -> Iterator[tuple[str, Tensor]]:
        up = np.zeros((self.n_units, self.n_hidden), np.float32)
        up_bias = np.zeros(self.n_units, np.float32)
        down, down_bias = np.zeros((SILENT + 1, self.n_units)), np.zeros(SILENT + 1)
        down_bias[set_to_one] = 1
        for i, unit in enumerate(units):
            up_bias[i] = SHARPNESS * unit.bias
            for hidden, weight in unit.weights.items():
                up[i, hidden] = SHARPNESS * weight
            for hidden, gain in unit.gains.items():
                down[hidden, i] = gain / SHARPNESS
        dtype = np.float32 if units else np.float16  # what does nothing may as well be small
        yield "ffn_up.weight", up.astype(dtype)
        yield "ffn_up.bias", up_bias
        yield "ffn_down.weight", self.mirror(down).astype(dtype)
        yield "ffn_down.bias", self.mirror(down_bias)


def _level_units() -> tuple[Unit, ...]:
    """Move each channel's 1 from low to mid, and from mid to high, at the thresholds."""
    units: list[Unit] = []
    for channel, (rise, threshold) in product(range(3), enumerate(THRESHOLDS)):
        below = LEVEL + 3 * channel + rise
        for border, sign in ((threshold - RAMP, 1.0), (threshold + RAMP, -1.0)):
            slope = 1 / (2 * RAMP)
            gains = {below + 1: sign, below: -sign}
            units.append(Unit({CHANNEL + channel: slope}, -border * slope, gains))
    return tuple(units)


def _name_units() -> tuple[Unit, ...]:
    """Say a cell's name where all three of its levels hold, and nothing in silent rows."""
    units: list[Unit] = []
    for name, levels in zip(CELLS, product(range(3), repeat=3), strict=True):
        weights = {LEVEL + 3 * channel + level: 1.0 for channel, level in enumerate(levels)}
        units.append(Unit({**weights, SILENT: -1.0}, -2.0, {NAME + NAMES.index(name): 1.0}))
    return tuple(units)
