"""The cost of sampling, measured with tiny numbers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.sampling.measuring import LEAST_CONSTRAINED, SamplingOutcome, measure_sampling
from loadtest.sampling.text import sampling_text
from runnerd.models import resolve_model

pytestmark = pytest.mark.llama

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def outcome() -> SamplingOutcome:
    told: list[str] = []
    outcome = measure_sampling(resolve_model("smollm2"), 1, 1, told.append, n_steps=3)
    assert len(told) == 2
    return outcome


def test_both_kinds_of_cost_are_measured(outcome: SamplingOutcome) -> None:
    assert 0 < outcome.greedy_ms < outcome.usual_ms < outcome.private_ms
    assert outcome.tokens_per_s > 0
    assert outcome.constrained_tokens_per_s > 0
    assert [bar.limit for bar in outcome.bars] == [0.45, 0.1, LEAST_CONSTRAINED]


def test_the_table_shows_every_bar(outcome: SamplingOutcome) -> None:
    text = sampling_text(outcome)
    assert all(f"{bar.value:.3f}" in text for bar in outcome.bars)


def test_without_a_model_nothing_is_generated() -> None:
    command = [sys.executable, "-m", "loadtest", "sampling", "--rounds=1", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    printed = json.loads(done.stdout)
    assert printed["tokens_per_s"] == 0
    assert len(printed["bars"]) == 2
