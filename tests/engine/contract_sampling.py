"""Contract: how the next token is picked."""

from dataclasses import replace

import pytest

from runnerd.core.batch import Sampling
from runnerd.engine.base import Engine
from tests.engine.driving import (
    GREEDY,
    PROMPTS,
    Lane,
    generate,
    generate_alone,
    sample_once,
    tokens,
)

N = 8  # tokens per generation
CREATIVE = Sampling(temperature=1.2, seed=7)
OPEN = "Once upon a time there was a little"  # many things may follow


class SamplingContract:
    """How the next token is picked."""

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(temperature=0.0, top_k=5, top_p=0.5, min_p=0.1, seed=3),
            Sampling(temperature=1.0, top_k=1, seed=3),
            Sampling(temperature=1.0, top_p=1e-6, seed=3),
            Sampling(temperature=1.0, min_p=1.0, seed=3),
        ],
        ids=["temperature 0", "top_k 1", "top_p 0", "min_p 1"],
    )
    def test_sampling_with_one_choice_is_greedy(self, engine: Engine, sampling: Sampling) -> None:
        prompt = tokens(engine, PROMPTS[0])
        assert generate_alone(engine, prompt, N, sampling) == generate_alone(engine, prompt, N)

    def test_the_same_seed_gives_the_same_tokens(self, engine: Engine) -> None:
        prompt = tokens(engine, OPEN)
        first = generate_alone(engine, prompt, N, CREATIVE)
        assert generate_alone(engine, prompt, N, CREATIVE, slot_id=2) == first

    def test_different_seeds_give_different_tokens(self, engine: Engine) -> None:
        prompt = tokens(engine, OPEN)
        seeds = (0, 1, 2, 2**32 - 1)
        drawn = {
            tuple(generate_alone(engine, prompt, N, replace(CREATIVE, seed=seed))) for seed in seeds
        }
        assert len(drawn) == len(seeds)

    def test_batch_mates_do_not_change_what_a_seed_gives(self, engine: Engine) -> None:
        prompts = [tokens(engine, text) for text in PROMPTS]
        samplings = [CREATIVE, GREEDY, replace(CREATIVE, seed=8), replace(CREATIVE, top_k=20)]
        pairs = list(zip(prompts, samplings, strict=True))
        alone = [generate_alone(engine, prompt, N, sampling) for prompt, sampling in pairs]
        lanes = [Lane(i, *pair, first_step=i % 2) for i, pair in enumerate(pairs)]
        assert generate(engine, lanes, N) == alone

    def test_a_huge_presence_penalty_forbids_every_repetition(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[3])
        sampling = Sampling(presence_penalty=1000.0)
        generated = generate_alone(engine, prompt, 12, sampling)
        assert len(set(generated)) == 12
        assert not set(generated) & set(prompt)

    @pytest.mark.parametrize(
        "sampling",
        [Sampling(repeat_penalty=50.0), Sampling(frequency_penalty=1000.0)],
        ids=["repeat", "frequency"],
    )
    def test_penalties_change_the_choice(self, engine: Engine, sampling: Sampling) -> None:
        prompt = tokens(engine, PROMPTS[3])
        (favourite,) = generate_alone(engine, prompt, 1)
        assert sample_once(engine, prompt, sampling, (*prompt, *[favourite] * 3)) != favourite

    @pytest.mark.parametrize("penalty_last_n", [2, 3])
    def test_penalties_look_back_as_far_as_asked(self, engine: Engine, penalty_last_n: int) -> None:
        prompt = tokens(engine, PROMPTS[0])
        (favourite,) = generate_alone(engine, prompt, 1)
        other = next(token for token in prompt if token != favourite)
        sampling = Sampling(presence_penalty=1000.0, penalty_last_n=penalty_last_n)
        sampled = sample_once(engine, prompt, sampling, (favourite, other, other))
        assert (sampled == favourite) == (penalty_last_n == 2)

    def test_a_closed_sampler_leaves_no_trace(self, engine: Engine) -> None:
        prompt = tokens(engine, OPEN)
        plain, drawn = (generate_alone(engine, prompt, N, s) for s in (GREEDY, CREATIVE))
        everything = Sampling(
            temperature=2.0,
            top_k=5,
            top_p=0.5,
            min_p=0.9,
            repeat_penalty=2.0,
            frequency_penalty=5.0,
            presence_penalty=5.0,
            seed=99,
        )
        generate_alone(engine, prompt, N, everything)
        assert generate_alone(engine, prompt, N) == plain
        assert generate_alone(engine, prompt, N, CREATIVE) == drawn
