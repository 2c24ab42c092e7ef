"""Contract: what may be picked, and what is told of it."""

import math
from dataclasses import replace

import pytest

from runnerd.core.batch import Logprobs, SampleFault, Sampling
from runnerd.engine.base import Engine
from tests.engine.driving import PROMPTS, generate_alone, sample_once, tokens

N = 8  # tokens per generation
NEVER = -math.inf


class FilterContract:
    """What may be picked, and what is told of it."""

    def likeliest(self, engine: Engine, prompt: tuple[int, ...], n_top: int) -> Logprobs:
        """Return the likeliest tokens after a prompt."""
        sampled = sample_once(engine, prompt, Sampling(n_logprobs=n_top), ())
        assert isinstance(sampled, Logprobs)
        return sampled

    def test_logprobs_are_told_of_the_token_and_the_likeliest(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        (favourite,) = generate_alone(engine, prompt, 1)
        told = self.likeliest(engine, prompt, 5)
        assert told.token == favourite
        assert told.top[0] == (favourite, told.logprob)
        values = [value for _, value in told.top]
        assert values == sorted(values, reverse=True)
        assert len({token for token, _ in told.top}) == 5
        assert 0 < sum(map(math.exp, values)) <= 1 + 1e-6

    def test_all_logprobs_add_up_to_certainty(self, engine: Engine) -> None:
        told = self.likeliest(engine, tokens(engine, PROMPTS[0]), engine.model.n_vocab)
        assert sum(math.exp(value) for _, value in told.top) == pytest.approx(1, abs=1e-3)

    def test_without_a_top_only_the_tokens_own_is_told(self, engine: Engine) -> None:
        told = self.likeliest(engine, tokens(engine, PROMPTS[0]), 0)
        assert told.top == ()
        assert told.logprob < 0

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(temperature=5.0, top_k=2, seed=1),
            Sampling(logit_bias=((65, 3.0),)),
            Sampling(presence_penalty=5.0),
        ],
        ids=["temperature", "bias", "penalty"],
    )
    def test_logprobs_are_those_before_any_change(self, engine: Engine, sampling: Sampling) -> None:
        prompt = tokens(engine, PROMPTS[0])
        expected = self.likeliest(engine, prompt, 3)
        told = sample_once(engine, prompt, replace(sampling, n_logprobs=3), prompt)
        assert isinstance(told, Logprobs)
        assert told.top == expected.top

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_banned_token_is_never_picked(self, engine: Engine, temperature: float) -> None:
        prompt = tokens(engine, PROMPTS[0])
        (favourite,) = generate_alone(engine, prompt, 1)
        sampling = Sampling(temperature=temperature, seed=3, logit_bias=((favourite, NEVER),))
        assert favourite not in generate_alone(engine, prompt, N, sampling)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_large_bias_is_an_order(self, engine: Engine, temperature: float) -> None:
        prompt = tokens(engine, PROMPTS[0])
        wanted = prompt[-1]
        sampling = Sampling(temperature=temperature, seed=3, logit_bias=((wanted, 1000.0),))
        assert generate_alone(engine, prompt, 3, sampling) == [wanted] * 3

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_where_everything_is_banned_there_is_no_token(
        self, engine: Engine, temperature: float
    ) -> None:
        bans = tuple((token, NEVER) for token in range(engine.model.n_vocab))
        sampling = Sampling(temperature=temperature, logit_bias=bans)
        sampled = sample_once(engine, tokens(engine, PROMPTS[0]), sampling, ())
        assert isinstance(sampled, SampleFault)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_end_tokens_can_be_ignored(self, engine: Engine, temperature: float) -> None:
        prompt = tokens(engine, PROMPTS[0])
        biases = tuple((token, 50.0) for token in engine.model.end_tokens)
        eager = Sampling(temperature=temperature, seed=3, logit_bias=biases)
        (first,) = generate_alone(engine, prompt, 1, eager)
        assert engine.is_end(first)
        generated = generate_alone(engine, prompt, N, replace(eager, ignore_end=True))
        assert not any(map(engine.is_end, generated))

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(temperature=1.0, top_n_sigma=1e-4, seed=3),
            Sampling(temperature=1e-4, dynatemp_range=5e-5, seed=3),
            Sampling(temperature=0.5, dynatemp_range=0.5, dynatemp_exponent=50.0, seed=3),
            Sampling(temperature=1.0, mirostat=2, mirostat_tau=0.0, seed=3),
            Sampling(temperature=0.0, mirostat=1, xtc_probability=1.0, typical_p=0.1, seed=3),
        ],
        ids=["top_n_sigma", "dynamic", "sure", "mirostat 2", "temperature 0"],
    )
    def test_these_leave_one_choice(self, engine: Engine, sampling: Sampling) -> None:
        prompt = tokens(engine, PROMPTS[0])
        assert generate_alone(engine, prompt, N, sampling) == generate_alone(engine, prompt, N)

    def test_xtc_leaves_the_least_likely_of_the_top_choices(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        second = self.likeliest(engine, prompt, 2).top[1][0]
        sampling = Sampling(temperature=1.0, top_k=2, xtc_probability=1.0, xtc_threshold=0.0)
        assert sample_once(engine, prompt, sampling, ()) == second

    @pytest.mark.parametrize("mirostat", [1, 2])
    def test_mirostat_gives_the_same_for_the_same_seed(self, engine: Engine, mirostat: int) -> None:
        prompt = tokens(engine, PROMPTS[0])
        sampling = Sampling(temperature=1.0, mirostat=mirostat, seed=9)
        first = generate_alone(engine, prompt, N, sampling)
        assert generate_alone(engine, prompt, N, sampling, slot_id=2) == first

    @pytest.mark.parametrize(("allowed", "is_penalised"), [(1, True), (2, True), (3, False)])
    def test_dry_stops_a_repetition_that_is_long_enough(
        self, engine: Engine, allowed: int, is_penalised: bool
    ) -> None:
        prompt = tokens(engine, PROMPTS[0])
        (favourite,) = generate_alone(engine, prompt, 1)
        first, second = [token for token in prompt if token != favourite][:2]
        history = (first, second, favourite, first, second)
        sampling = Sampling(dry_multiplier=1000.0, dry_allowed_length=allowed)
        sampled = sample_once(engine, prompt, sampling, history)
        assert (sampled != favourite) == is_penalised

    def test_dry_looks_back_as_far_as_asked(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        (favourite,) = generate_alone(engine, prompt, 1)
        first, second = [token for token in prompt if token != favourite][:2]
        history = (first, second, favourite, first, second)
        sampling = Sampling(dry_multiplier=1000.0, dry_last_n=4)
        assert sample_once(engine, prompt, sampling, history) == favourite

    def test_dry_sees_no_repetition_across_a_breaker(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        (favourite,) = generate_alone(engine, prompt, 1)
        first = next(token for token in prompt if token != favourite and token < 2**15)
        (newline,) = tokens(engine, "\n")[-1:]
        history = (first, newline, favourite, first, newline)
        sampling = Sampling(dry_multiplier=1000.0, dry_allowed_length=1)
        assert sample_once(engine, prompt, sampling, history) == favourite
        unbroken = replace(sampling, dry_breakers=())
        assert sample_once(engine, prompt, unbroken, history) != favourite
