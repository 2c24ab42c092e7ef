"""From records to figures, and what is typical of several rounds."""

from collections.abc import Callable, Sequence
from statistics import median

from msgspec import Struct

from loadtest.rates import decode_rate, itls_ms, percentile, rate
from loadtest.streams.recording import Load, Round


class Figures(Struct, frozen=True):
    """The figures of one round; 0 where there is nothing to measure.

    `tokens_per_s`: generated tokens of all streams, from the first request to the last token.
    `decode_tokens_per_s`: only while every stream generates.
    `prefill_tokens_per_s`: prompt tokens, from the first request until every stream generates.
    `step_ms`: the time from the first request to the last token, per forward pass; `cpu_ms`:
    the CPU time of the process, all its threads, per forward pass.
    """

    tokens_per_s: float
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    itl_p50_ms: float
    itl_p95_ms: float
    itl_p99_ms: float
    itl_max_ms: float
    deltas_per_s: float
    step_ms: float
    cpu_ms: float


class Report(Struct, frozen=True, kw_only=True):
    """What a load gave: the median of each figure over the rounds, its least and its greatest.

    Counts are sums over the rounds. `ready_s` is the time from the start of the process until
    it could serve; 0 if it was there before.
    """

    load: Load
    n_connections: int
    n_generated: int
    n_cached: int
    n_ended_early: int
    resident_bytes: int
    ready_s: float = 0.0
    median: Figures
    least: Figures
    greatest: Figures


def measure(seen: Round) -> Figures:
    """Return the figures of one round."""
    streams = [stream for stream in seen.streams if stream.arrivals]
    if not streams:
        return Figures(*[0.0] * len(Figures.__struct_fields__))
    started_at = min(stream.asked_at for stream in streams)
    elapsed_s = max(stream.arrivals[-1][0] for stream in streams) - started_at
    ttfts = [(stream.arrivals[0][0] - stream.asked_at) * 1e3 for stream in streams]
    itls = [itl for stream in streams for itl in itls_ms(stream.arrivals)]
    all_generate_at = max(stream.arrivals[0][0] for stream in streams)
    n_evaluated = sum(seen.n_prompt - stream.n_cached for stream in streams)
    return Figures(
        tokens_per_s=rate(sum(stream.n_generated for stream in streams), elapsed_s),
        decode_tokens_per_s=decode_rate([stream.arrivals for stream in streams]),
        prefill_tokens_per_s=rate(n_evaluated, all_generate_at - started_at),
        ttft_p50_ms=percentile(ttfts, 50),
        ttft_p95_ms=percentile(ttfts, 95),
        itl_p50_ms=percentile(itls, 50),
        itl_p95_ms=percentile(itls, 95),
        itl_p99_ms=percentile(itls, 99),
        itl_max_ms=max(itls, default=0.0),
        deltas_per_s=rate(sum(stream.n_deltas for stream in streams), elapsed_s),
        step_ms=_per_step_ms(elapsed_s, seen),
        cpu_ms=_per_step_ms(seen.cpu_s, seen),
    )


def report(
    load: Load,
    rounds: Sequence[Round],
    *,
    resident_bytes: int,
    n_connections: int = 0,
    ready_s: float = 0.0,
) -> Report:
    """Sum up the rounds of a load; there is at least one."""
    figures = [measure(seen) for seen in rounds]
    streams = [stream for seen in rounds for stream in seen.streams]
    return Report(
        load=load,
        n_connections=n_connections,
        n_generated=sum(stream.n_generated for stream in streams),
        n_cached=sum(stream.n_cached for stream in streams),
        n_ended_early=sum(stream.ended_early for stream in streams),
        resident_bytes=resident_bytes,
        ready_s=ready_s,
        median=_each(median, figures),
        least=_each(min, figures),
        greatest=_each(max, figures),
    )


def _each(pick: Callable[[list[float]], float], figures: Sequence[Figures]) -> Figures:
    """Pick one value of each figure."""
    names = Figures.__struct_fields__
    return Figures(*(pick([getattr(each, name) for each in figures]) for name in names))


def _per_step_ms(elapsed_s: float, seen: Round) -> float:
    return elapsed_s * 1e3 / seen.n_steps if seen.n_steps else 0.0
