"""What simulations came to, for people."""

from collections.abc import Sequence

from loadtest.simulation.summary import Simulated
from loadtest.tables import bar_table, table


def simulated_text(outcomes: Sequence[Simulated]) -> str:
    """Return what simulations came to, side by side, and the bars."""
    columns = [_simulated(each) for each in outcomes]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    heads = ["", *(each.load.name for each in outcomes)]
    bars = [bar for each in outcomes for bar in each.bars]
    return "\n".join([*table(heads, rows), "", *bar_table(bars)])


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
