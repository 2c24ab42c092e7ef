"""Contract: embeddings, where the engine makes them."""

import numpy as np
import pytest

from runnerd.engine.base import Engine, Pooling
from tests.engine.driving import PROMPTS, Lane, filled, generate, generate_alone, tokens

TEXTS = ("a", "some more", "10, 9, 8,", "the cat")  # few tokens in all, for a small `n_embed`
N = 6  # tokens per generation
CLOSE = 1e-5  # of a vector's length


class EmbedContract:
    """Embeddings, where the engine makes them."""

    def poolings(self, engine: Engine) -> tuple[Pooling, ...]:
        """Return how the engine can pool, or skip the test."""
        if not engine.model.poolings:
            pytest.skip("the model makes no embeddings")
        return engine.model.poolings

    def test_each_input_gives_a_vector_of_its_own(self, engine: Engine) -> None:
        inputs = [tokens(engine, text) for text in TEXTS]
        for pooling in self.poolings(engine):
            vectors = engine.embed(inputs, pooling)
            assert vectors.shape == (len(inputs), engine.model.n_embd)
            assert vectors.dtype == np.float32
            assert np.isfinite(vectors).all()
            assert len(np.unique(vectors, axis=0)) == len(inputs)

    def test_together_equals_alone(self, engine: Engine) -> None:
        inputs = [tokens(engine, text) for text in TEXTS]
        for pooling in self.poolings(engine):
            together = engine.embed(inputs, pooling)
            for vector, alone in zip(together, inputs, strict=True):
                (expected,) = engine.embed([alone], pooling)
                assert np.linalg.norm(vector - expected) <= CLOSE * np.linalg.norm(expected)

    def test_one_token_is_its_own_mean_and_last(self, engine: Engine) -> None:
        if not {"mean", "last"} <= set(self.poolings(engine)):
            pytest.skip("the engine pools in one way")
        (token,) = tokens(engine, PROMPTS[0])[-1:]
        mean, last = (engine.embed([(token,)], pooling)[0] for pooling in ("mean", "last"))
        assert np.linalg.norm(mean - last) <= CLOSE * np.linalg.norm(last)

    def test_an_input_of_the_longest_length_is_taken(self, engine: Engine) -> None:
        pooling = self.poolings(engine)[0]
        tail = tokens(engine, PROMPTS[0])[-1:]
        vectors = engine.embed([tail * engine.model.n_embed], pooling)
        assert np.isfinite(vectors).all()

    def test_generations_go_on_untouched(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[2])
        expected = generate_alone(engine, prompt, N)
        n_cached = filled(engine, 0, prompt[:-1])
        engine.embed([tokens(engine, PROMPTS[1])], self.poolings(engine)[0])
        assert generate(engine, [Lane(0, prompt, n_cached=n_cached)], N) == [expected]
