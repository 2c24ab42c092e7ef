"""What earlier tokens take from the logits: repetition penalties, and DRY.

Source: llama.cpp, src/llama-sampler.cpp; DRY is by p-e-w, text-generation-webui #5677.
"""

from collections import Counter
from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from runnerd.core.batch import Sampling

Floats = NDArray[np.float64]

MAX_BREAKER_BYTES = 40
MAX_TAIL = 20  # bytes of a breaker that are looked for after its first
MAX_LOG = 88.7228391  # of the largest float32: no penalty is beyond it


def penalise(logits: Floats, sampling: Sampling, recent: Sequence[int]) -> None:
    """Take the repeat, frequency and presence penalties of recent tokens from logits."""
    counted = Counter(recent)
    tokens = np.fromiter(counted.keys(), dtype=np.intp)
    counts = np.fromiter(counted.values(), dtype=np.float64)
    seen = logits[tokens]
    # Dividing a negative logit would reward the token.
    factor = np.where(seen > 0, 1 / sampling.repeat_penalty, sampling.repeat_penalty)
    logits[tokens] = seen * factor - counts * sampling.frequency_penalty - sampling.presence_penalty


def penalise_loops(logits: Floats, sampling: Sampling, recent: Sequence[int]) -> None:
    """Take from each token that would go on with a repetition the more, the longer that is (DRY).

    A token counts by the longest run of tokens before an earlier place of it that also ends
    `recent`. Runs reach back over no breaker, and one-byte breakers are never penalised.
    """
    allowed = sampling.dry_allowed_length
    breakers = [text.encode()[:MAX_BREAKER_BYTES] for text in sampling.dry_breakers]
    backwards = recent[::-1]
    n_most = _unbroken(backwards, breakers)
    if len(backwards) <= allowed or n_most < allowed:
        return
    longest: dict[int, int] = {}
    for place, n_equal in enumerate(_repeats(backwards)):
        n_repeated = min(n_equal, n_most)
        if place and n_repeated >= allowed:
            follows = backwards[place - 1]
            longest[follows] = max(n_repeated, longest.get(follows, 0))
    base = sampling.dry_base
    n_top = int(MAX_LOG / log(base)) if base > 1.000001 else 0
    for token, n_repeated in longest.items():
        if token < 256 and bytes((token,)) in breakers:
            continue
        exponent = n_repeated - allowed
        logits[token] -= sampling.dry_multiplier * base ** min(exponent, n_top or exponent)


def _unbroken(backwards: Sequence[int], breakers: Sequence[bytes]) -> int:
    """Return how many of the last tokens there are since the last breaker."""
    for place, token in enumerate(backwards):
        tails = [text[1 : 1 + MAX_TAIL] for text in breakers if text[:1] == _byte(token)]
        ended = [
            len(tail)
            for tail in tails
            if tuple(backwards[max(place - len(tail), 0) : place][::-1]) == tuple(tail)
        ]
        if ended:
            return place - max(ended)
    return len(backwards)


def _byte(token: int) -> bytes | None:
    return bytes((token,)) if token < 256 else None


def _repeats(tokens: Sequence[int]) -> list[int]:
    """Return for each place how many tokens from there on equal those at the start (Z function)."""
    n_tokens = len(tokens)
    repeats = [n_tokens] + [0] * (n_tokens - 1)
    left = right = 0
    for place in range(1, n_tokens):
        n_equal = min(repeats[place - left], max(right - place, 0))
        while place + n_equal < n_tokens and tokens[n_equal] == tokens[place + n_equal]:
            n_equal += 1
        repeats[place] = n_equal
        if place + n_equal > right:
            left, right = place, place + n_equal
    return repeats
