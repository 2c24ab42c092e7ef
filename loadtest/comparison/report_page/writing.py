"""The files of a report, and baselines: reports that are kept, without what takes the room."""

from pathlib import Path

from msgspec.structs import replace

from loadtest.comparison.report_page.page import page
from loadtest.comparison.results import Results, decode, encode

REPORT, PAGE, BASELINE = "report.json", "report.html", "baseline.json"


def write_report(results: Results, folder: Path, baseline: Results | None = None) -> None:
    """Write results as they are, as a page, and as a baseline for later ones."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_bytes(encode(results))
    (folder / PAGE).write_text(page(results, baseline), encoding="utf-8")
    (folder / BASELINE).write_bytes(encode(slimmed(results)))


def slimmed(results: Results) -> Results:
    """Return results without the requests of which figures are made: the figures are kept."""
    return replace(
        results,
        workloads=[
            replace(workload, turns=[replace(turn, exchanges=[]) for turn in workload.turns])
            for workload in results.workloads
        ],
    )


def read_baseline(path: Path) -> Results:
    """Return what a baseline holds.

    Raises:
        OSError: it cannot be read.
        msgspec.DecodeError: it is none.
    """
    return decode(path.read_bytes())
