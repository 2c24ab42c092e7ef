"""What sampling cost, for people."""

from loadtest.sampling.measuring import SamplingOutcome
from loadtest.tables import bar_table, table


def sampling_text(outcome: SamplingOutcome) -> str:
    """Return what sampling cost, and the bars."""
    rows = [
        ["private chains, ms", f"{outcome.private_ms:.2f}"],
        ["top-k 40 and top-p, ms", f"{outcome.usual_ms:.2f}"],
        ["greedy, ms", f"{outcome.greedy_ms:.2f}"],
        ["tokens/s", f"{outcome.tokens_per_s:.1f}"],
        ["tokens/s with a JSON schema", f"{outcome.constrained_tokens_per_s:.1f}"],
    ]
    return "\n".join([*table(["", "median"], rows), "", *bar_table(outcome.bars)])
