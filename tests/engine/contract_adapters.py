"""Contract: adapters, chosen decode by decode.

A test module provides the fixture `adapted`, an engine that has one adapter, of the name TINY.
"""

from runnerd.core.batch import Adapter, Adapters, KVRemove
from runnerd.engine.base import Engine
from tests.engine.driving import PROMPTS, Lane, apply, generate, generate_alone, tokens

TINY = "tiny"
N = 6  # tokens per generation
WITH: Adapters = (Adapter(TINY),)


class AdapterContract:
    """Adapters, chosen decode by decode."""

    def said(self, engine: Engine, adapters: Adapters) -> list[int]:
        """Return what is generated with these adapters, from an empty slot."""
        return generate_alone(engine, tokens(engine, PROMPTS[0]), N, adapters=adapters)

    def test_the_model_names_its_adapters(self, adapted: Engine) -> None:
        assert adapted.model.adapters == (TINY,)

    def test_an_adapter_changes_what_is_generated(self, adapted: Engine) -> None:
        assert self.said(adapted, WITH) != self.said(adapted, ())

    def test_without_adapters_all_is_as_before(self, adapted: Engine) -> None:
        before = self.said(adapted, ())
        self.said(adapted, WITH)
        assert self.said(adapted, ()) == before

    def test_the_same_adapter_gives_the_same_again(self, adapted: Engine) -> None:
        first = self.said(adapted, WITH)
        self.said(adapted, ())
        assert self.said(adapted, WITH) == first

    def test_the_scale_says_how_much_of_it(self, adapted: Engine) -> None:
        barely = (Adapter(TINY, 1e-6),)
        assert self.said(adapted, barely) == self.said(adapted, ())

    def test_slots_with_and_without_it_take_turns(self, adapted: Engine) -> None:
        prompt = tokens(adapted, PROMPTS[0])
        expected = [self.said(adapted, adapters) for adapters in ((), WITH)]
        apply(adapted, KVRemove(0, 0), KVRemove(1, 0))
        lanes = [Lane(0, prompt), Lane(1, prompt)]
        said: list[list[int]] = [[], []]
        for _ in range(N):
            for slot_id, adapters in enumerate(((), WITH)):
                lane = Lane(slot_id, (*prompt, *said[slot_id]), n_cached=lanes[slot_id].n_cached)
                said[slot_id] += generate(adapted, [lane], 1, adapters)[0]
                lanes[slot_id] = lane
        assert said == expected
