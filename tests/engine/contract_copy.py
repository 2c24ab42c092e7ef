"""Contract: a copy of a slot goes on as the slot itself would, and neither disturbs the other."""

import pytest

from runnerd.core.batch import KVCopy, KVRemove
from runnerd.engine.base import Engine
from tests.engine.driving import (
    PROMPTS,
    Lane,
    apply,
    filled,
    generate,
    generate_alone,
    skip_unless_rewinding,
    tokens,
)

N = 8  # tokens per generation


class CopyContract:
    """A copy of a slot goes on as the slot itself would, and neither disturbs the other."""

    def test_a_copy_goes_on_as_the_slot_would(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[0])
        expected = generate_alone(engine, prompt, N)
        n_cached = filled(engine, 1, prompt[:-1])
        apply(engine, KVRemove(2, 0), KVCopy(1, 2, n_cached))
        assert generate(engine, [Lane(2, prompt, n_cached=n_cached)], N) == [expected]

    def test_both_go_on_in_the_same_passes(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[1])
        other = (*prompt[:-1], *tokens(engine, " and then")[-2:])
        expected = [generate_alone(engine, inputs, N) for inputs in (prompt, other)]
        n_cached = filled(engine, 0, prompt[:-1])
        apply(engine, KVRemove(3, 0), KVCopy(0, 3, n_cached))
        lanes = [Lane(0, prompt, n_cached=n_cached), Lane(3, other, n_cached=n_cached)]
        assert generate(engine, lanes, N) == expected

    def test_a_copy_outlives_its_source(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[2])
        expected = generate_alone(engine, prompt, N)
        n_cached = filled(engine, 0, prompt[:-1])
        apply(engine, KVRemove(1, 0), KVCopy(0, 1, n_cached), KVRemove(0, 0))
        filled(engine, 0, tokens(engine, PROMPTS[3]))
        assert generate(engine, [Lane(1, prompt, n_cached=n_cached)], N) == [expected]

    def test_a_source_outlives_its_copy(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[2])
        expected = generate_alone(engine, prompt, N)
        n_cached = filled(engine, 0, prompt[:-1])
        apply(engine, KVRemove(1, 0), KVCopy(0, 1, n_cached))
        apply(engine, KVRemove(1, 0))
        filled(engine, 1, tokens(engine, PROMPTS[3]))
        assert generate(engine, [Lane(0, prompt, n_cached=n_cached)], N) == [expected]

    def test_copies_of_copies_in_one_step_are_all_the_same(self, engine: Engine) -> None:
        prompt = tokens(engine, PROMPTS[3])
        expected = generate_alone(engine, prompt, N)
        n_cached = filled(engine, 0, prompt[:-1])
        copies = [KVCopy(0, 1, n_cached), KVCopy(1, 2, n_cached), KVCopy(0, 3, n_cached)]
        apply(engine, *(KVRemove(slot_id, 0) for slot_id in (1, 2, 3)), *copies)
        lanes = [Lane(slot_id, prompt, n_cached=n_cached) for slot_id in range(4)]
        assert generate(engine, lanes, N) == [expected] * 4

    @pytest.mark.parametrize("n_copied", [1, 4])
    def test_a_copy_of_the_start_leaves_the_rest_behind(
        self, engine: Engine, n_copied: int
    ) -> None:
        skip_unless_rewinding(engine)
        source, other = tokens(engine, PROMPTS[0]), tokens(engine, PROMPTS[1])
        mixed = (*source[:n_copied], *other[n_copied:])
        expected = [generate_alone(engine, inputs, N) for inputs in (mixed, source)]
        n_cached = filled(engine, 0, source[:-1])
        apply(engine, KVRemove(1, 0), KVCopy(0, 1, n_copied))
        lanes = [Lane(1, mixed, n_cached=n_copied), Lane(0, source, n_cached=n_cached)]
        assert generate(engine, lanes, N) == expected
