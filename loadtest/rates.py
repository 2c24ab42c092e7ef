"""What figures are made of: gaps, rates, percentiles, and how even shares are."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

Arrivals = Sequence[tuple[float, int]]  # instants, and how many tokens came then


def itls_ms(arrivals: Arrivals) -> list[float]:
    """Return the gap before each token but the first; tokens that come together have none.

    There is at least one arrival.
    """
    gaps = [0.0] * (arrivals[0][1] - 1)
    for (before, _), (at, n_tokens) in pairwise(arrivals):
        gaps += [(at - before) * 1e3] + [0.0] * (n_tokens - 1)
    return gaps


def decode_rate(streams: Sequence[Arrivals]) -> float:
    """Return the tokens per second in the window in which every stream generates.

    Summed over streams, each from its first arrival in the window to its last: the tokens of
    one step arrive one after another, and the window's edges must not cut through a step.
    There is at least one stream, and each has an arrival.
    """
    start = max(arrivals[0][0] for arrivals in streams)
    stop = min(arrivals[-1][0] for arrivals in streams)
    total = 0.0
    for arrivals in streams:
        inside = [arrival for arrival in arrivals if start <= arrival[0] <= stop]
        if len(inside) < 2:
            continue
        n_tokens = sum(n for _, n in inside[1:])
        total += rate(n_tokens, inside[-1][0] - inside[0][0])
    return total


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that so many percent do not exceed; 0.0 of none."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if values else 0.0


def rate(count: int, elapsed_s: float) -> float:
    """Return how many a second; 0.0 in no time."""
    return count / elapsed_s if elapsed_s > 0 else 0.0


def jain(served: Sequence[float]) -> float:
    """Return Jain's index: 1.0 when all have the same, 1/n when one has everything.

    Of nothing, and where nobody has anything, it is 1.0.
    Source: Jain, Chiu and Hawe, "A quantitative measure of fairness", DEC-TR-301, 1984.
    """
    squares = sum(each * each for each in served)
    return sum(served) ** 2 / (len(served) * squares) if squares else 1.0
