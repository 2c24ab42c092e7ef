"""What images cost, for people."""

from loadtest.images.measuring import ImageOutcome
from loadtest.tables import bar_table, table


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
    return "\n".join([*table(["", "measured"], rows), "", *bar_table(outcome.bars)])
