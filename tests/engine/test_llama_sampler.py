import math
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from runnerd.core.batch import Sampled, SampleFault, Sampling

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

from runnerd.engine.llama.sampler import Samplers  # noqa: E402 needs llama_cpp

N_VOCAB = 1000
ONLY_FEW = {3: 5.0, 7: 4.0, 11: 3.0, 13: -2.0}


def row(logits: Mapping[int, float] = ONLY_FEW, rest: float = -50.0) -> NDArray[np.float32]:
    values = np.full(N_VOCAB, rest, np.float32)
    for token, logit in logits.items():
        values[token] = logit
    return values


@pytest.fixture
def samplers() -> Iterator[Samplers]:
    samplers = Samplers(N_VOCAB)
    yield samplers
    samplers.close_all()


def pick(samplers: Samplers, seq_id: int, logits: NDArray[np.float32]) -> Sampled:
    (sampled,) = samplers.sample((seq_id,), logits[np.newaxis]).sampled
    return sampled


def draws(samplers: Samplers, sampling: Sampling, n_draws: int = 200) -> list[Sampled]:
    samplers.open(1, sampling, ())
    drawn = [pick(samplers, 1, row()) for _ in range(n_draws)]
    samplers.close(1)
    return drawn


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_a_bad_number_gives_a_fault(
    samplers: Samplers, bad: float, temperature: float
) -> None:
    samplers.open(1, Sampling(temperature=temperature), ())
    assert isinstance(pick(samplers, 1, row({500: bad, 3: 9.0})), SampleFault)
    assert pick(samplers, 1, row({3: 90.0})) == 3


def test_a_bad_row_leaves_the_others_alone(samplers: Samplers) -> None:
    for seq_id in range(3):
        samplers.open(seq_id, Sampling(temperature=float(seq_id)), ())
    rows = np.stack([row({3: 90.0}), row({3: math.nan}), row({7: 90.0})])
    first, second, third = samplers.sample((0, 1, 2), rows).sampled
    assert isinstance(second, SampleFault)
    assert (first, third) == (3, 7)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_nothing_to_choose_from_gives_a_fault(
    samplers: Samplers, temperature: float
) -> None:
    samplers.open(1, Sampling(temperature=temperature), ())
    assert isinstance(pick(samplers, 1, row({}, rest=-math.inf)), SampleFault)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidden_tokens_are_never_chosen(samplers: Samplers, temperature: float) -> None:
    samplers.open(1, Sampling(temperature=temperature, repeat_penalty=1.5), ())
    only_one = row({8: -30.0}, rest=-math.inf)
    assert [pick(samplers, 1, only_one) for _ in range(5)] == [8] * 5


def test_greedy_takes_the_first_of_equals(samplers: Samplers) -> None:
    samplers.open(1, Sampling(), ())
    assert pick(samplers, 1, row({9: 4.0, 4: 4.0})) == 4


@pytest.mark.parametrize(
    ("sampling", "possible"),
    [
        (Sampling(temperature=1.0, seed=1), {3, 7, 11}),
        (Sampling(temperature=1.0, top_k=2, seed=1), {3, 7}),
        (Sampling(temperature=1.0, top_p=0.7, seed=1), {3, 7}),
        (Sampling(temperature=1.0, min_p=0.2, seed=1), {3, 7}),
        (Sampling(temperature=0.01, seed=1), {3}),
    ],
    ids=["all", "top_k", "top_p", "min_p", "cold"],
)
def test_a_draw_comes_from_what_is_left(
    samplers: Samplers, sampling: Sampling, possible: set[int]
) -> None:
    assert set(draws(samplers, sampling)) == possible


def test_tokens_come_as_often_as_they_are_likely(samplers: Samplers) -> None:
    drawn = draws(samplers, Sampling(temperature=1.0, seed=5), 4000)
    expected = 1 / (1 + math.exp(-1) + math.exp(-2))
    assert drawn.count(3) / 4000 == pytest.approx(expected, abs=0.03)


def test_samplers_that_share_an_array_do_not_disturb_each_other(samplers: Samplers) -> None:
    creative = Sampling(temperature=1.0, top_k=3, seed=5)
    alone = draws(samplers, creative, 50)
    samplers.open(1, creative, ())
    samplers.open(2, Sampling(temperature=2.0, top_p=0.9, presence_penalty=3.0), ())
    together = []
    for _ in range(50):
        together.append(pick(samplers, 1, row()))
        pick(samplers, 2, row(rest=4.0))
    assert together == alone


def test_a_fault_costs_no_draw(samplers: Samplers) -> None:
    creative = Sampling(temperature=1.0, seed=5)
    alone = draws(samplers, creative, 20)
    samplers.open(1, creative, ())
    drawn = []
    for _ in range(20):
        pick(samplers, 1, row({5: math.nan}))
        drawn.append(pick(samplers, 1, row()))
    assert drawn == alone


def test_penalties_know_the_history_and_what_was_picked(samplers: Samplers) -> None:
    samplers.open(1, Sampling(presence_penalty=20.0), (3,))
    assert [pick(samplers, 1, row()) for _ in range(3)] == [7, 11, 13]


def test_a_sequence_has_one_sampler(samplers: Samplers) -> None:
    samplers.open(1, Sampling(), ())
    with pytest.raises(AssertionError, match="sequence 1"):
        samplers.open(1, Sampling(), ())
