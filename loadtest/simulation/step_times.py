"""How long a step takes, as a sum of what it has to do; and two machines it was fitted to.

A step reads the weights, runs rows through them, reads the cells that its spans look back on,
and multiplies every row with every cell it attends to. What of that counts is the machine's
affair: a CPU feels the products, a GPU hides them behind reading the cells.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from runnerd.core.batch import Step


class StepSize(NamedTuple):
    """What a step has to do. `n_pairs`: rows times the cells that each attends to."""

    n_rows: int
    n_cells: int
    n_pairs: int


class StepTimes(Struct, frozen=True, kw_only=True):
    """Seconds by step, row, cell and pair. `about` says where they come from."""

    about: str
    base_s: float
    row_s: float
    cell_s: float = 0.0
    pair_s: float = 0.0

    def of(self, size: StepSize) -> float:
        """Return how long a step of this size takes."""
        return (
            self.base_s
            + self.row_s * size.n_rows
            + self.cell_s * size.n_cells
            + self.pair_s * size.n_pairs
        )


def size_of(step: Step) -> StepSize:
    """Return what a step of token batches has to do; positions there are cells before a row."""
    n_rows = n_cells = n_pairs = 0
    for batch in step.batches:
        for span in batch.spans:
            n_new = len(span.inputs)
            n_rows += n_new
            n_cells += span.pos + n_new
            n_pairs += n_new * span.pos + n_new * (n_new + 1) // 2
    return StepSize(n_rows, n_cells, n_pairs)


def fit(sizes: Sequence[StepSize], seconds: Sequence[float], about: str) -> StepTimes:
    """Return the step times that come closest to what was measured.

    Closest in ratio, so that long steps do not outweigh short ones. None is negative: what would
    be is left out, the worst first.
    """
    parts = np.array([(1, *size) for size in sizes]) / np.array(seconds)[:, None]
    left = [*range(parts.shape[1])]
    found = np.array([-1.0])
    while found.min() < 0:
        found = np.linalg.lstsq(parts[:, left], np.ones(len(seconds)), rcond=None)[0]
        if found.min() < 0:
            del left[int(found.argmin())]
    by_part = dict.fromkeys(range(parts.shape[1]), 0.0) | dict(
        zip(left, found.tolist(), strict=True)
    )
    return StepTimes(
        about=about,
        base_s=by_part[0],
        row_s=by_part[1],
        cell_s=by_part[2],
        pair_s=by_part[3],
    )


CPU = StepTimes(
    about="SmolLM2-135M (Q4_1) on one core of a Xeon",
    base_s=9.6e-3,
    row_s=7.2e-3,
    cell_s=31e-6,
    pair_s=0.18e-6,
)
"""A CPU, as `python -m loadtest record-steps` has fitted it: llama.cpp with one thread, split KV,
batches of 1 to 1,200 rows over 17 to 1,700 cells. It comes within 12 % of every step recorded."""

H100 = StepTimes(
    about="LLaMA 7B in FP8 on one H100, fitted to NVIDIA's figures for TensorRT-LLM 0.6.1",
    base_s=5.07e-3,
    row_s=15.0e-6,
    cell_s=0.071e-6,
)
"""A GPU, from published figures.

The first token of a prompt of 128 tokens alone is there after 7 ms, of 2,048 after 36 ms: 15.1 us
by row with its cell, and 5.07 ms for the weights. What steps of many streams take beyond that is
the reading of cells: with 0.071 us for each, all of the published throughputs come out within 5 %
(`H100_PUBLISHED`).

Source: github.com/NVIDIA/TensorRT-LLM, docs/source/performance.md at 138f96d ("Peak Throughput"
and "Low Latency", H100 GPUs).
"""

H100_PUBLISHED = (
    (768, 128, 128, 19_694.0),
    (112, 128, 2048, 6_818.0),
    (80, 2048, 128, 2_244.0),
    (48, 2048, 2048, 2_740.0),
)
"""Streams, prompt tokens and generated ones of each, and generated tokens per second of all."""
