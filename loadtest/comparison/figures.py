"""From exchanges to figures. Pure: the same exchanges give the same figures.

A figure has a name from `KNOWN`; what is said of the requests of one role alone has that role
and a dot before it: "short.ttft_p50_s". Nothing is measured that did not happen: without a
second token there is no ITL, and where one request's evaluated tokens are unknown, so is the sum.
"""

from collections.abc import Sequence
from statistics import median
from typing import Literal

from msgspec import Struct

from loadtest.comparison.exchange import Exchange
from loadtest.comparison.fairness import longest_gap_s, longest_wait_s, shares
from loadtest.rates import decode_rate, itls_ms, jain, percentile, rate

Figures = dict[str, float]


class Figure(Struct, frozen=True):
    """What a figure is: its unit ("" of a count or a ratio), and which way is better."""

    about: str
    unit: str
    better: Literal["more", "less"]


KNOWN = {
    "tokens_per_s": Figure("generated, from the first request to the last token", "1/s", "more"),
    "decode_tokens_per_s": Figure("generated while every stream generates", "1/s", "more"),
    "ttft_p50_s": Figure("request to first token, median", "s", "less"),
    "ttft_p95_s": Figure("request to first token, 95 % are within", "s", "less"),
    "ttft_max_s": Figure("request to first token, the longest", "s", "less"),
    "all_started_s": Figure("first request until all have their first token", "s", "less"),
    "itl_p50_ms": Figure("gap between tokens of a stream, median", "ms", "less"),
    "itl_p99_ms": Figure("gap between tokens of a stream, 99 % are within", "ms", "less"),
    "longest_gap_s": Figure("longest gap between tokens of a stream", "s", "less"),
    "n_prompt": Figure("prompt tokens asked", "", "more"),
    "n_evaluated": Figure("prompt tokens evaluated", "", "less"),
    "n_generated": Figure("tokens generated", "", "more"),
    "client_us": Figure("CPU time by token of the client that measures", "us", "less"),
    "jain": Figure("Jain index of what equals got of an equal share", "", "more"),
    "longest_wait": Figure("longest wait with a slot free, in median steps x slots", "", "less"),
    "evaluated_ratio": Figure("evaluated to new prompt tokens, from turn 2 on", "", "less"),
    "json_ratio": Figure("decode tokens/s with a schema to those without", "", "more"),
    "embedded_per_s": Figure("inputs embedded", "1/s", "more"),
    "prefill_tokens_per_s": Figure("prompt tokens evaluated", "1/s", "more"),
    "step_ms": Figure("host time of a step, with an engine that costs nothing", "ms", "less"),
    "deltas_per_s": Figure("messages with text, with an engine that costs nothing", "1/s", "more"),
}


def known(name: str) -> Figure:
    """Return what a figure is, whether it has a role before it or not."""
    return KNOWN[name.rpartition(".")[2]]


def measure_exchanges(exchanges: Sequence[Exchange], n_slots: int) -> Figures:
    """Return the figures of all requests, and of each role where there are several."""
    figures = _basics(exchanges)
    roles = list(dict.fromkeys(each.role for each in exchanges))
    if len(roles) > 1:
        for role in roles:
            of_role = _basics([each for each in exchanges if each.role == role])
            figures |= {f"{role}.{name}": value for name, value in of_role.items()}
    step_s = _median_step_s(exchanges)
    if step_s:
        figures["jain"] = jain([share for role in roles for share in _shares(exchanges, role)])
        figures["longest_wait"] = longest_wait_s(exchanges, n_slots) / (step_s * n_slots)
    return figures


def ttfts_s(exchanges: Sequence[Exchange]) -> list[float]:
    """Return the times to first token, of those that got one; every value, for a CDF."""
    return [each.arrivals[0][0] - each.asked_at for each in exchanges if each.arrivals]


def all_itls_ms(exchanges: Sequence[Exchange]) -> list[float]:
    """Return the gaps before all tokens but the first of each; every value, for a CDF."""
    return [itl for each in exchanges if each.arrivals for itl in itls_ms(each.arrivals)]


def _basics(exchanges: Sequence[Exchange]) -> Figures:
    """Return what needs no comparison between requests."""
    figures: Figures = {
        "n_prompt": sum(each.n_prompt for each in exchanges),
        "n_generated": sum(each.n_generated for each in exchanges),
    }
    evaluated = [each.n_evaluated for each in exchanges if each.n_evaluated is not None]
    if len(evaluated) == len(exchanges):
        figures["n_evaluated"] = sum(evaluated)
    streams = [each for each in exchanges if each.arrivals]
    if not streams:
        return figures
    started_at = min(each.asked_at for each in streams)
    elapsed_s = max(each.arrivals[-1][0] for each in streams) - started_at
    ttfts, itls = ttfts_s(streams), all_itls_ms(streams)
    figures |= {
        "tokens_per_s": rate(sum(each.n_generated for each in streams), elapsed_s),
        "ttft_p50_s": percentile(ttfts, 50),
        "ttft_p95_s": percentile(ttfts, 95),
        "ttft_max_s": max(ttfts),
        "all_started_s": max(each.arrivals[0][0] for each in streams) - started_at,
    }
    if itls:
        figures |= {
            "itl_p50_ms": percentile(itls, 50),
            "itl_p99_ms": percentile(itls, 99),
            "longest_gap_s": max(longest_gap_s(each) for each in streams),
        }
    decoded = decode_rate([each.arrivals for each in streams])
    return figures | ({"decode_tokens_per_s": decoded} if decoded else {})


def _shares(exchanges: Sequence[Exchange], role: str) -> list[float]:
    """Return the shares of those that are equals: of one role."""
    return shares([each for each in exchanges if each.role == role])


def _median_step_s(exchanges: Sequence[Exchange]) -> float:
    """Return the typical time between tokens that did not come together; 0.0 of none."""
    gaps = [itl for itl in all_itls_ms(exchanges) if itl > 0]
    return median(gaps) / 1e3 if gaps else 0.0
