"""What a load gave, and how far a daemon is from the bare loop, for people."""

from statistics import median

from loadtest.streams.against_loop import Comparison, LoopOutcome
from loadtest.streams.measure import Figures, Report
from loadtest.tables import bar_table, table

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
    return "\n".join([*facts, "", *table(["", "median", "least", "greatest"], rows)])


def loop_text(outcome: LoopOutcome) -> str:
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
    return "\n".join([*table(heads, compared), "", *bar_table(outcome.bars)])


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
