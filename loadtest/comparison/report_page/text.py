"""A comparison as tables for a terminal, or for a README: Rich draws them as Markdown."""

from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtest.comparison.report_page.view import (
    Cell,
    bar_rows,
    failures,
    figure_rows,
    headline,
    systems_of,
)
from loadtest.comparison.results import Results

WIDE = 240  # columns: a table for a README is not broken
SHOWN = ("tokens_per_s", "ttft_p50_s", "ttft_max_s", "itl_p50_ms", "itl_p99_ms", "longest_gap_s")
SHOWN_OF_ROLES = ("short.ttft_max_s", "long.ttft_max_s", "stream.longest_gap_s")
SHOWN_ALWAYS = (
    "n_evaluated",
    "evaluated_ratio",
    "json_ratio",
    "embedded_per_s",
    "jain",
    "client_us",
)


def report_text(results: Results, baseline: Results | None = None) -> str:
    """Return the figures that matter most, by workload and system, the bars, and the failures."""
    written = StringIO()
    console = Console(file=written, width=WIDE, highlight=False, markup=False, emoji=False)
    for workload in results.workloads:
        systems = systems_of(workload)
        table = _table(workload.name, *systems)
        shown = {*SHOWN, *SHOWN_OF_ROLES, *SHOWN_ALWAYS}
        for row in figure_rows(workload, baseline):
            if row.name.partition(",")[0] in shown:
                table.add_row(_plain(row.name), *(_plain(_told(cell)) for cell in row.cells))
        console.print(table)
    if results.verdicts:
        table = _table("workload", "bar", "measured", "limit", "")
        for bar in bar_rows(results.verdicts):
            outcome = f"{bar.outcome}: {bar.why}" if bar.why else bar.outcome
            table.add_row(*map(_plain, (bar.workload, bar.name, bar.value, bar.limit, outcome)))
        console.print(table)
    for where, what in failures(results):
        console.print(_plain(f"{where}: {what}"))
    console.print(_plain(headline(results)))
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def _told(cell: Cell) -> str:
    return f"{cell.told} ({cell.change})" if cell.change else cell.told


def _plain(text: str) -> Text:
    """Return a text that can do nothing to a terminal, nor to a table."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return Text(shown.replace("|", "¦"))


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.MARKDOWN, show_edge=True)
    table.add_column(_plain(first))
    for other in others:
        table.add_column(_plain(other), justify="left" if first == "workload" else "right")
    return table
