"""How long a status was waited for, for people."""

from loadtest.health.measuring import HealthOutcome
from loadtest.tables import bar_table, table


def health_text(outcome: HealthOutcome) -> str:
    """Return how long a status was waited for, and the bars."""
    rows = [
        [each.situation, str(each.n_asked)]
        + [f"{figure:.2f}" for figure in (each.p50_ms, each.p99_ms, each.most_ms)]
        for each in outcome.waits
    ]
    heads = ["status while", "asked", "p50, ms", "p99, ms", "most, ms"]
    return "\n".join([*table(heads, rows), "", *bar_table(outcome.bars)])
