"""Contract: the KV cache, and how rows are batched, never change what comes out."""

import pytest

from runnerd.core.batch import KVRemove, KVShift, SamplerClose, SamplerOpen, Span
from runnerd.engine.base import Engine
from tests.engine.driving import (
    GREEDY,
    PROMPTS,
    Lane,
    MakeEngine,
    apply,
    generate,
    generate_alone,
    run_spans,
    skip_unless_rewinding,
    tokens,
)

N = 8  # tokens per generation


class DecodeContract:
    """The KV cache, and how rows are batched, never change what comes out."""

    def test_any_slot_gives_the_same_tokens(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        first = generate_alone(engine, prompt, N, slot_id=0)
        assert generate_alone(engine, prompt, N, slot_id=engine.limits.n_slots - 1) == first

    @pytest.mark.parametrize(
        ("n_rows", "first_steps"),
        [
            ((32, 32, 32, 32), (0, 0, 0, 0)),
            ((1, 3, 7, 2), (0, 0, 0, 0)),
            ((2, 32, 1, 5), (6, 0, 3, 1)),
        ],
        ids=["whole", "ragged", "staggered"],
    )
    def test_batched_equals_alone(
        self, engine: Engine, n_rows: tuple[int, ...], first_steps: tuple[int, ...]
    ) -> None:
        prompts = [tokens(engine, text) for text in PROMPTS]
        alone = [generate_alone(engine, prompt, N) for prompt in prompts]
        lanes = [
            Lane(slot_id, prompt, n_rows=rows, first_step=first_step)
            for slot_id, (prompt, rows, first_step) in enumerate(
                zip(prompts, n_rows, first_steps, strict=True)
            )
        ]
        assert generate(engine, lanes, N) == alone

    def test_span_order_is_output_order_whatever_the_slots(self, engine: Engine) -> None:
        prompts = [tokens(engine, text) for text in PROMPTS]
        alone = [generate_alone(engine, prompt, N) for prompt in prompts]
        lanes = [Lane(3 - i, prompt) for i, prompt in enumerate(prompts)]
        assert generate(engine, [lanes[i] for i in (2, 0, 3, 1)], N) == [
            alone[i] for i in (2, 0, 3, 1)
        ]

    def test_only_rows_that_want_logits_are_sampled(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        expected = generate_alone(engine, prompt, 1)
        apply(engine, KVRemove(0, 0), KVRemove(1, 0), SamplerOpen(1, GREEDY))
        spans = [Span(0, 0, 0, prompt), Span(1, 1, 0, prompt, wants_logits=True)]
        sampled = run_spans(engine, spans)
        apply(engine, SamplerClose(1))
        assert list(sampled) == expected

    @pytest.mark.parametrize("n_rows", [1, 2, 3])
    def test_prefill_in_pieces_equals_prefill_at_once(self, engine: Engine, n_rows: int) -> None:
        prompt = tokens(engine, PROMPTS[1])
        whole = generate_alone(engine, prompt, N)
        assert generate(engine, [Lane(0, prompt, n_rows=n_rows)], N) == [whole]

    @pytest.mark.parametrize("n_cached", [1, 3])
    def test_cached_equals_recomputed(self, engine: Engine, n_cached: int) -> None:
        skip_unless_rewinding(engine)
        old, new = tokens(engine, PROMPTS[0]), tokens(engine, PROMPTS[1])
        mixed = old[:n_cached] + new[1:]
        expected = generate_alone(engine, mixed, N, slot_id=1)
        generate_alone(engine, old, N)
        assert generate(engine, [Lane(0, mixed, n_cached=n_cached)], N) == [expected]

    def test_a_slot_forgotten_as_a_whole_is_as_new(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[2])
        with_others_before = generate_alone(engine, prompt, N)
        generate_alone(engine, tokens(engine, PROMPTS[3]), N)
        assert generate_alone(engine, prompt, N) == with_others_before

    def test_forgetting_a_slot_leaves_its_neighbour_alone(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        expected = generate_alone(engine, prompt, N)
        lane = Lane(1, prompt)
        begun = generate(engine, [lane], 3)[0]
        apply(engine, KVRemove(0, 0), KVRemove(2, 0))
        rest = Lane(1, (*prompt, *begun), n_cached=lane.n_cached)
        assert begun + generate(engine, [rest], N - 3)[0] == expected

    def test_two_engines_do_not_disturb_each_other(
        self, engine: Engine, make_engine: MakeEngine
    ) -> None:
        prompt = tokens(engine, PROMPTS[0])
        expected = generate_alone(engine, prompt, N)
        with make_engine(n_slots=1) as other:
            assert generate_alone(other, prompt, N) == expected
        assert generate_alone(engine, prompt, N) == expected


class ShiftContract:
    """A context shift, where the engine can do one."""

    def shifted(self, engine: Engine) -> Lane:
        """Fill slot 0, drop the positions [1, 4), and return what goes on from there."""
        if not engine.limits.can_shift:
            pytest.skip("the engine cannot shift")
        prompt = tokens(engine, PROMPTS[1])
        begun = generate_alone(engine, prompt, N)
        inputs = (*prompt, *begun)
        apply(engine, KVRemove(0, 1, 4), KVShift(0, 4, None, -3))
        # The last token generated has been sampled, not stored.
        return Lane(0, inputs[:1] + inputs[4:], n_cached=len(inputs) - 4)

    def test_generation_goes_on_right_after_a_shift(self, engine: Engine) -> None:
        first = generate(engine, [self.shifted(engine)], N)
        assert generate(engine, [self.shifted(engine)], N) == first

    def test_what_lies_before_the_cut_is_untouched(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[1])
        expected = generate_alone(engine, prompt, N)
        self.shifted(engine)
        assert generate(engine, [Lane(0, prompt, n_cached=1)], N) == [expected]

    def test_a_shift_leaves_the_neighbour_alone(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        expected = generate_alone(engine, prompt, N, slot_id=1)
        shifted = self.shifted(engine)
        apply(engine, KVRemove(1, len(prompt)))
        together = [shifted, Lane(1, prompt, n_cached=len(prompt) - 1)]
        assert generate(engine, together, N)[1] == expected
