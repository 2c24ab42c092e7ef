"""How evenly requests are served, from what their clients have seen."""

from collections.abc import Sequence
from itertools import pairwise

from loadtest.comparison.exchange import Exchange

SHORT_PROMPT = 64  # tokens; evaluated within a step or two
LEAST_TOKENS = 8  # of a request whose share counts: that of fewer is a matter of one step


def shares(exchanges: Sequence[Exchange]) -> list[float]:
    """Return what each request has got of an equal share; 1.0: just that.

    Whenever tokens come, each of the requests that generate then is due as many as the others.
    A request generates from its first token to its last. The tokens that open the stretch are
    not counted, nor are requests with few tokens.
    """
    spans = [
        (each.arrivals, each.arrivals[0][0], each.arrivals[-1][0])
        for each in exchanges
        if each.n_generated > LEAST_TOKENS and each.arrivals[-1][0] > each.arrivals[0][0]
    ]
    got, due = [0.0] * len(spans), [0.0] * len(spans)
    for number, (arrivals, first_at, _) in enumerate(spans):
        for at, n_tokens in arrivals:
            if at <= first_at:
                continue
            got[number] += n_tokens
            live = [n for n, (_, start, stop) in enumerate(spans) if start < at <= stop]
            for n in live:
                due[n] += n_tokens / len(live)
    return [of_one / of_equals for of_one, of_equals in zip(got, due, strict=True)]


def longest_wait_s(exchanges: Sequence[Exchange], n_slots: int) -> float:
    """Return the longest time that a request was without a token though a slot was free for it.

    That is between tokens, and to the first one of a short prompt: from the instant when fewer
    than `n_slots` of those asked before it were still there. A long one has to be evaluated
    first, which takes its time even where nobody else is.
    """
    longest = 0.0
    ordered = sorted(exchanges, key=lambda each: each.asked_at)
    for number, each in enumerate(ordered):
        if not each.arrivals:
            continue
        earlier = sorted(other.ended_at for other in ordered[:number])
        n_ahead = len(earlier) - n_slots
        free_at = earlier[n_ahead] if n_ahead >= 0 else each.asked_at
        longest = max(longest, longest_gap_s(each))
        if each.n_prompt <= SHORT_PROMPT:
            longest = max(longest, each.arrivals[0][0] - max(each.asked_at, free_at))
    return longest


def longest_gap_s(exchange: Exchange) -> float:
    """Return the longest time between two arrivals of tokens; 0.0 of fewer."""
    return max((at - before for (before, _), (at, _) in pairwise(exchange.arrivals)), default=0.0)
