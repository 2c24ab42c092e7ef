"""Thousands of requests with every option, and everything that can happen to them.

The short run is for every day; `make soak` is the long one, and prints what happened.
"""

import sys
from collections import Counter

import pytest

from tests.soak.running import run_rounds, table

EVERYTHING = (
    *("aborts", "rows kept of aborts", "full caches", "pauses", "suspensions"),
    *("prefix hits", "forks", "waits for a prefix", "checkpoints saved", "checkpoints used"),
    *("truncations", "shifts", "moves", "steps with adapters", "told of progress"),
    *("forced texts", "log-probabilities", "retold alone"),
    *("refused: prompt_too_long", "ended: engine_failed", "ended: cancelled", "ended: timeout"),
    *("ended: stop", "ended: stop_sequence", "ended: length", "ended: context"),
)


def check_that_everything_happened(counts: Counter[str]) -> None:
    missing = [name for name in EVERYTHING if not counts[name]]
    assert not missing, f"never happened: {missing}\n{table(counts)}"


def test_two_thousand_requests_say_what_they_say_alone_whatever_happens() -> None:
    check_that_everything_happened(run_rounds(2_000, seed=0))


@pytest.mark.soak
def test_fifty_thousand_requests_say_what_they_say_alone_whatever_happens() -> None:
    counts = run_rounds(50_000, seed=1_000)
    sys.stdout.write(f"\n{table(counts)}\n")
    check_that_everything_happened(counts)
