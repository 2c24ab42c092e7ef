"""Reports and bars for people, as Markdown."""

from collections.abc import Sequence
from statistics import median

from loadtest.bars import Bar, Comparison, Outcome
from loadtest.health import HealthOutcome
from loadtest.images import ImageOutcome
from loadtest.measure import Figures, Report
from loadtest.sampling import SamplingOutcome
from loadtest.simulating import Simulated
from loadtest.soak import SoakOutcome
from loadtest.soak_looks import Look

LABELS = {
    "tokens_per_s": "tokens/s",
    "decode_tokens_per_s": "tokens/s while all generate",
    "prefill_tokens_per_s": "prompt tokens/s",
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p95_ms": "TTFT p95, ms",
    "itl_p50_ms": "ITL p50, ms",
    "itl_p95_ms": "ITL p95, ms",
    "itl_p99_ms": "ITL p99, ms",
    "itl_max_ms": "ITL max, ms",
    "deltas_per_s": "deltas/s",
    "step_ms": "time per step, ms",
    "cpu_ms": "CPU time per step, ms",
}


def report_text(report: Report) -> str:
    """Return a report: what was asked, what came, and its figures."""
    load = report.load
    n_asked = load.n_streams * load.max_tokens * load.n_rounds
    facts = [
        f"{load.n_streams} streams of {load.n_prompt} prompt tokens and {load.max_tokens} new"
        f" ones, {load.n_rounds} rounds, seed {load.seed}",
        f"{report.n_generated} of {n_asked} tokens generated,"
        f" {report.n_ended_early} streams met an end token,"
        f" {report.n_cached} prompt tokens were cached",
        f"{report.resident_bytes / 1e6:.1f} MB resident"
        + (f", ready after {report.ready_s:.2f} s" if report.ready_s else ""),
    ]
    spread = (report.median, report.least, report.greatest)
    rows = [
        [LABELS[name], *(f"{getattr(figures, name):.2f}" for figures in spread)]
        for name in Figures.__struct_fields__
    ]
    return "\n".join([*facts, "", *_table(["", "median", "least", "greatest"], rows)])


def outcome_text(outcome: Outcome) -> str:
    """Return the comparison of daemon and bare loop, and the bars."""
    heads = [
        "streams",
        "tokens/s",
        "bare loop",
        "ratio",
        "decode tokens/s",
        "bare loop",
        "ratio",
        "ready later by, s",
        "more resident, MB",
        "met an end token",
    ]
    compared = [_compared(each) for each in outcome.comparisons]
    return "\n".join([*_table(heads, compared), "", *_bar_table(outcome.bars)])


def sampling_text(outcome: SamplingOutcome) -> str:
    """Return what sampling cost, and the bars."""
    rows = [
        ["private chains, ms", f"{outcome.private_ms:.2f}"],
        ["top-k 40 and top-p, ms", f"{outcome.usual_ms:.2f}"],
        ["greedy, ms", f"{outcome.greedy_ms:.2f}"],
        ["tokens/s", f"{outcome.tokens_per_s:.1f}"],
        ["tokens/s with a JSON schema", f"{outcome.constrained_tokens_per_s:.1f}"],
    ]
    return "\n".join([*_table(["", "median"], rows), "", *_bar_table(outcome.bars)])


def image_text(outcome: ImageOutcome) -> str:
    """Return what images cost, and the bars."""
    beside, again, grown = outcome.beside, outcome.again, outcome.growth
    rows = [
        ["ITL p50 of text, ms", f"{beside.itl_p50_ms:.1f}"],
        ["ITL p95 of text, ms", f"{beside.itl_p95_ms:.1f}"],
        ["ITL p95 beside images, ms", f"{beside.itl_p95_beside_ms:.1f}"],
        ["encoding an image, ms", f"{beside.encode_ms:.1f}"],
        ["evaluating an image, ms", f"{beside.media_step_ms:.1f}"],
        ["images encoded beside text", f"{beside.n_encoded}"],
        ["first token of one, s", f"{again.one_s:.3f}"],
        ["first tokens of all, s", f"{again.all_s:.3f}"],
        ["first token when asked again, s", f"{again.again.ttft_s:.3f}"],
        ["most memory of its own, MB", f"{grown.most_bytes / 1e6:.1f}"],
    ]
    return "\n".join([*_table(["", "measured"], rows), "", *_bar_table(outcome.bars)])


def health_text(outcome: HealthOutcome) -> str:
    """Return how long a status was waited for, and the bars."""
    rows = [
        [each.situation, str(each.n_asked)]
        + [f"{figure:.2f}" for figure in (each.p50_ms, each.p99_ms, each.most_ms)]
        for each in outcome.waits
    ]
    heads = ["status while", "asked", "p50, ms", "p99, ms", "most, ms"]
    return "\n".join([*_table(heads, rows), "", *_bar_table(outcome.bars)])


def soak_text(outcome: SoakOutcome) -> str:
    """Return what became of the requests, what was seen at each look, and the bars."""
    seen, counts = outcome.seen, outcome.seen.counts
    facts = [
        f"{counts.n_asked} requests over {counts.n_connections} connections,"
        f" seed {outcome.load.seed}: {counts.n_finished} finished, {counts.n_answered} answered,"
        f" {counts.n_failed} failed, {counts.n_left} left with their connection;"
        f" {counts.n_cancelled} were cancelled",
        f"the probe says {seen.looks[0].text!r}",
    ]
    heads = ["after", "MiB", "descriptors", "threads", "busy", "waiting", "connections", "cells"]
    rows = [_looked("requests", each) for each in seen.looks]
    rows += [_looked("connections", each) for each in seen.connect_looks]
    return "\n".join([*facts, "", *_table(heads, rows), "", *_bar_table(outcome.bars)])


def simulated_text(outcomes: Sequence[Simulated]) -> str:
    """Return what simulations came to, side by side, and the bars."""
    columns = [_simulated(each) for each in outcomes]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    heads = ["", *(each.load.name for each in outcomes)]
    bars = [bar for each in outcomes for bar in each.bars]
    return "\n".join([*_table(heads, rows), "", *_bar_table(bars)])


def _simulated(each: Simulated) -> dict[str, str]:
    return {
        "slots": f"{each.load.n_slots}",
        "requests": f"{each.load.n_requests}",
        "requests/s": f"{each.load.arrivals_per_s:g}",
        "tokens/s": f"{each.tokens_per_s:.0f}",
        "steps, with every slot taken": f"{each.n_steps}, {each.n_full_steps}",
        "step p50, ms": f"{each.step_p50_ms:.1f}",
        "plan p50, p99, host ms": f"{each.plan_p50_ms:.2f}, {each.plan_p99_ms:.2f}",
        "commit p50, p99, host ms": f"{each.commit_p50_ms:.2f}, {each.commit_p99_ms:.2f}",
        "host time to step time": f"{each.host_share:.1%}",
        "queue p50, p99, most, s": (
            f"{each.queue_p50_s:.2f}, {each.queue_p99_s:.2f}, {each.queue_max_s:.2f}"
        ),
        "slot to first token p50, p99, s": f"{each.prefill_p50_s:.3f}, {each.prefill_p99_s:.3f}",
        "the same of short prompts, p99, s": f"{each.short_prefill_p99_s:.3f}",
        "ITL p50, p99, most, ms": (
            f"{each.itl_p50_ms:.1f}, {each.itl_p99_ms:.1f}, {each.itl_max_ms:.1f}"
        ),
        "ITL within the target": f"{each.within_target:.1%} of {each.load.target_itl_ms:g} ms",
        "service, greatest to least": f"{each.service_ratio:.3f}",
        "suspended": f"{each.n_suspended}",
    }


def _looked(what: str, look: Look) -> list[str]:
    held = look.holding
    figures = (
        *(held.n_descriptors, held.n_threads, look.n_slots_busy, look.n_waiting),
        *(look.n_connections, look.n_cells_used),
    )
    return [
        f"{held.n_requests} {what}",
        f"{held.n_bytes / 2**20:.1f}",
        *map(str, figures),
    ]


def _bar_table(bars: Sequence[Bar]) -> list[str]:
    rows = [
        [bar.name, f"{bar.value:.3f}", f"{bar.sign} {bar.limit:g}", "yes" if bar.is_met else "NO"]
        for bar in bars
    ]
    return _table(["bar", "measured", "limit", "met"], rows)


def _compared(each: Comparison) -> list[str]:
    ours = [pair.daemon for pair in each.pairs]
    raw = [pair.raw for pair in each.pairs]
    return [
        str(each.n_streams),
        f"{median(r.median.tokens_per_s for r in ours):.1f}",
        f"{median(r.median.tokens_per_s for r in raw):.1f}",
        f"{each.tokens_ratio:.3f}",
        f"{median(r.median.decode_tokens_per_s for r in ours):.1f}",
        f"{median(r.median.decode_tokens_per_s for r in raw):.1f}",
        f"{each.decode_ratio:.3f}",
        f"{each.ready_diff_s:+.2f}",
        f"{each.resident_diff_mb:+.1f}",
        f"{sum(r.n_ended_early for r in ours)}, {sum(r.n_ended_early for r in raw)}",
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a table; the first column to the left, figures to the right."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    laid_out = [
        " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
    return [f"| {laid_out[0]} |", f"|{rule}|", *(f"| {line} |" for line in laid_out[1:])]
