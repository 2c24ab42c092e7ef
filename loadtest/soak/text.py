"""What a soak has shown, for people."""

from loadtest.soak.looks import Look
from loadtest.soak.outcome import SoakOutcome
from loadtest.tables import bar_table, table


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
    heads = ["after", "MiB", "descriptors", "threads", "tasks"]
    heads += ["busy", "waiting", "connections", "cells"]
    rows = [_looked("requests", each) for each in seen.looks]
    rows += [_looked("connections", each) for each in seen.connect_looks]
    return "\n".join([*facts, "", *table(heads, rows), "", *bar_table(outcome.bars)])


def _looked(what: str, look: Look) -> list[str]:
    held = look.holding
    figures = (
        *(held.n_descriptors, held.n_threads, look.n_tasks),
        *(look.n_slots_busy, look.n_waiting, look.n_connections, look.n_cells_used),
    )
    return [
        f"{held.n_requests} {what}",
        f"{held.n_bytes / 2**20:.1f}",
        *map(str, figures),
    ]
