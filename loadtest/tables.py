"""Tables and bars for people, as lines of Markdown."""

from collections.abc import Sequence

from loadtest.bars import Bar


def bar_table(bars: Sequence[Bar]) -> list[str]:
    """Lay out figures with their limits; those that are missed stand out."""
    rows = [
        [bar.name, f"{bar.value:.3f}", f"{bar.sign} {bar.limit:g}", "yes" if bar.is_met else "NO"]
        for bar in bars
    ]
    return table(["bar", "measured", "limit", "met"], rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a table; the first column to the left, figures to the right."""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    laid_out = [
        " | ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
    return [f"| {laid_out[0]} |", f"|{rule}|", *(f"| {line} |" for line in laid_out[1:])]
