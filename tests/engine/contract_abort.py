"""Contract: a decode that was stopped leaves nothing behind that it does not tell."""

import pytest

from runnerd.core.batch import Batch, BatchKind, KVRemove, SamplerClose, SamplerOpen, Span, Step
from runnerd.engine.base import Engine, run_step
from tests.engine.driving import (
    GREEDY,
    PROMPTS,
    Lane,
    apply,
    filled,
    generate,
    generate_alone,
    run_spans,
    tokens,
)

N = 8  # tokens per generation


class AbortContract:
    """A decode that was stopped leaves nothing behind that it does not tell."""

    def stopped(self, engine: Engine, *spans: Span) -> tuple[int | None, ...]:
        """Run spans while decodes are to stop; return how many rows of each are stored."""
        engine.set_abort(True)
        try:
            result = run_step(engine, Step(1, (), (Batch(BatchKind.TOKENS, spans),)))
        finally:
            engine.set_abort(False)
        if not result.is_aborted:
            pytest.skip("the engine runs a decode to its end")
        assert result.n_batches == 0
        assert result.sampled == ()
        assert result.n_stored is not None
        return result.n_stored

    def test_a_prompt_that_was_stopped_can_be_evaluated_again(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        expected = generate_alone(engine, prompt, N)
        apply(engine, KVRemove(0, 0))
        (n_stored,) = self.stopped(engine, Span(0, 0, 0, prompt))
        assert n_stored is None or 0 <= n_stored < len(prompt)
        assert generate(engine, [Lane(0, prompt, n_cached=n_stored or 0)], N) == [expected]

    def test_what_was_stored_before_is_kept_or_told_to_be_lost(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[1])
        expected = generate_alone(engine, prompt, N)
        n_cached = filled(engine, 0, prompt[:5])
        (n_stored,) = self.stopped(engine, Span(0, 0, n_cached, prompt[5:]))
        n_held = 0 if n_stored is None else n_cached + n_stored
        if engine.limits.window and 0 < engine.oldest()[0] > n_held - engine.limits.window:
            n_held = 0
        assert generate(engine, [Lane(0, prompt, n_cached=n_held)], N) == [expected]

    def test_slots_outside_the_batch_go_on(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[2])
        expected = generate_alone(engine, prompt, N)
        n_cached = filled(engine, 1, prompt[:-1])
        apply(engine, KVRemove(0, 0))
        self.stopped(engine, Span(0, 0, 0, tokens(engine, PROMPTS[3])))
        assert generate(engine, [Lane(1, prompt, n_cached=n_cached)], N) == [expected]

    def test_decodes_run_again_once_they_may(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[3])
        expected = generate_alone(engine, prompt, 1)
        engine.set_abort(True)
        engine.set_abort(False)
        apply(engine, KVRemove(0, 0), SamplerOpen(0, GREEDY))
        sampled = run_spans(engine, [Span(0, 0, 0, prompt, wants_logits=True)])
        apply(engine, SamplerClose(0))
        assert list(sampled) == expected
