"""Contract: checkpoints, where going back in a slot takes them."""

import pytest

from runnerd.core.batch import (
    CheckpointDrop,
    CheckpointRestore,
    CheckpointSave,
    KVCopy,
    KVRemove,
    Step,
)
from runnerd.engine.base import Engine, run_step
from tests.engine.driving import PROMPTS, Lane, apply, filled, generate, generate_alone, tokens

N = 6  # tokens per generation
KEPT = 7  # the checkpoint that these tests save


class CheckpointContract:
    """Checkpoints, where going back in a slot takes them."""

    def long_prompt(self, engine: Engine) -> tuple[int, ...]:
        """Return a prompt that slides out of the window, or skip the test."""
        limits = engine.limits
        if not limits.needs_checkpoints:
            pytest.skip("the engine goes back in a slot by forgetting its end")
        prompt = tokens(engine, PROMPTS[1])
        n_least = limits.window + 32
        inputs = prompt + prompt[1:] * (n_least // (len(prompt) - 1) + 1)
        assert len(inputs) + 4 * N < limits.n_ctx, "the engine is too small for these tests"
        return inputs

    def gone_on(self, engine: Engine, prompt: tuple[int, ...]) -> tuple[list[int], int]:
        """Save slot 0 before the prompt's last input, and let it go on far beyond."""
        expected = generate_alone(engine, prompt, N)
        n_cached = filled(engine, 0, prompt[:-1])
        apply(engine, CheckpointSave(KEPT, 0))
        filled(engine, 0, prompt, n_cached)
        more = tokens(engine, PROMPTS[0])[1:]
        filled(engine, 0, (*prompt, *more), len(prompt))
        return expected, n_cached

    def test_a_slot_goes_on_from_where_it_was_saved(self, engine: Engine) -> None:
        prompt = self.long_prompt(engine)
        expected, n_cached = self.gone_on(engine, prompt)
        apply(engine, CheckpointRestore(KEPT, 0, n_cached), CheckpointDrop(KEPT))
        assert generate(engine, [Lane(0, prompt, n_cached=n_cached)], N) == [expected]

    def test_a_checkpoint_can_be_restored_more_than_once(self, engine: Engine) -> None:
        prompt = self.long_prompt(engine)
        expected, n_cached = self.gone_on(engine, prompt)
        for _ in range(2):
            apply(engine, CheckpointRestore(KEPT, 0, n_cached))
            assert generate(engine, [Lane(0, prompt, n_cached=n_cached)], N) == [expected]
        apply(engine, CheckpointDrop(KEPT))

    def test_a_copy_can_be_put_back_in_the_same_step(self, engine: Engine) -> None:
        prompt = self.long_prompt(engine)
        expected, n_cached = self.gone_on(engine, prompt)
        apply(
            engine,
            KVRemove(2, 0),
            KVCopy(0, 2, n_cached),
            CheckpointRestore(KEPT, 2, n_cached),
            CheckpointDrop(KEPT),
        )
        assert generate(engine, [Lane(2, prompt, n_cached=n_cached)], N) == [expected]

    def test_putting_back_a_copy_leaves_the_slot_alone(self, engine: Engine) -> None:
        prompt = self.long_prompt(engine)
        inputs = (*prompt, *tokens(engine, PROMPTS[0])[1:], prompt[1])
        expected = generate_alone(engine, inputs, N)
        _, n_cached = self.gone_on(engine, prompt)
        restore = CheckpointRestore(KEPT, 1, n_cached)
        apply(engine, KVRemove(1, 0), KVCopy(0, 1, n_cached), restore, CheckpointDrop(KEPT))
        assert generate(engine, [Lane(0, inputs, n_cached=len(inputs) - 1)], N) == [expected]

    def test_a_prefix_evaluated_again_takes_the_checkpoint(self, engine: Engine) -> None:
        prompt = self.long_prompt(engine)
        expected, n_cached = self.gone_on(engine, prompt)
        apply(engine, KVRemove(0, 0))
        filled(engine, 1, (*prompt, *tokens(engine, PROMPTS[3])))
        apply(engine, CheckpointRestore(KEPT, 1, n_cached), CheckpointDrop(KEPT))
        assert generate(engine, [Lane(1, prompt, n_cached=n_cached)], N) == [expected]

    def test_saving_changes_nothing(self, engine: Engine) -> None:
        prompt = self.long_prompt(engine)
        expected = generate_alone(engine, prompt, N)
        n_cached = filled(engine, 0, prompt[:-1])
        apply(engine, CheckpointSave(KEPT, 0))
        apply(engine, CheckpointDrop(KEPT))
        assert generate(engine, [Lane(0, prompt, n_cached=n_cached)], N) == [expected]

    def test_the_step_that_saves_tells_the_size(self, engine: Engine) -> None:
        prompt = self.long_prompt(engine)
        filled(engine, 0, prompt)
        ((checkpoint_id, n_bytes),) = run_step(
            engine, Step(1, (CheckpointSave(KEPT, 0),), ())
        ).saved
        apply(engine, CheckpointDrop(KEPT))
        assert checkpoint_id == KEPT
        assert n_bytes > 0

    def test_the_oldest_position_tells_what_the_window_left(self, engine: Engine) -> None:
        prompt = self.long_prompt(engine)
        if not engine.limits.window:
            pytest.skip("the engine has no window")
        apply(engine, *(KVRemove(slot_id, 0) for slot_id in range(engine.limits.n_slots)))
        filled(engine, 1, prompt)
        result = run_step(engine, Step(1, (), ()))
        assert result.oldest[0] == -1
        assert 0 <= result.oldest[1] <= len(prompt) - engine.limits.window
