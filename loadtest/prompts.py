"""Prompts of an exact length: seeded words, different in every round and stream.

Plain lists of words, because a model goes on with a list and seldom ends it, and because any
tokenizer makes at least one token of a word.
"""

from collections.abc import Sequence
from random import Random

_WORDS = """
anchor apple arrow autumn badger bamboo barrel basket beacon bishop blanket bottle branch
bridge bronze bucket butter candle canyon carpet castle cedar cherry cinder circle citrus
clover copper coral cotton cradle crystal curtain dagger desert dragon eagle ember engine
falcon feather fennel ferry fiddle flame forest fossil garden garlic ginger glacier goblet
granite hammer harbor hazel helmet honey horizon island ivory jacket jungle kernel kettle
ladder lantern lemon lizard magnet maple marble meadow mirror mountain needle nutmeg oasis
ocean olive orchard otter oyster paddle panther pepper pigeon pillow planet pocket pumpkin
quartz rabbit ribbon river rocket saddle salmon scarlet shadow silver spider stable
summer table temple thunder timber tunnel turtle valley velvet violet walnut willow winter
"""
WORDS = tuple(_WORDS.split())


class PromptTooShort(ValueError):
    """A text gave fewer tokens than a prompt is to have."""


def prompt_texts(seed: int, n_round: int, n_streams: int, n_prompt: int) -> list[str]:
    """Return a text for every stream of a round, long enough for `n_prompt` tokens.

    No two texts of a seed begin with the same two words, up to `len(WORDS) ** 2` of them, so
    that no prompt profits from another one in the cache.
    """
    openings = Random(seed).sample(WORDS, len(WORDS))
    texts = []
    for number in range(n_round * n_streams, (n_round + 1) * n_streams):
        second, first = divmod(number, len(openings))
        opening = [openings[first], openings[second % len(openings)]]
        rest = Random(f"{seed}/{number}").choices(WORDS, k=n_prompt)
        texts.append(" ".join(opening + rest))
    return texts


def cut(tokens: Sequence[int], n_prompt: int) -> list[int]:
    """Return the first `n_prompt` tokens.

    Raises:
        PromptTooShort: there are fewer.
    """
    if len(tokens) < n_prompt:
        raise PromptTooShort(f"a text gave {len(tokens)} tokens, {n_prompt} are wanted")
    return list(tokens[:n_prompt])
