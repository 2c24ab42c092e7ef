"""The page: one file, with everything in it."""

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from loadtest.comparison.report_page.blocks import evaluated, memory
from loadtest.comparison.report_page.curves import distributions, throughput
from loadtest.comparison.report_page.palette import colours
from loadtest.comparison.report_page.timeline import WORKLOAD, timeline
from loadtest.comparison.report_page.view import (
    bar_rows,
    failures,
    figure_rows,
    headline,
    systems_of,
)
from loadtest.comparison.results import Results


def page(results: Results, baseline: Results | None = None) -> str:
    """Return results as HTML; with a baseline, figures have their changes beside them.

    Whatever systems have said is text in it, and nothing else.
    """
    environment = Environment(
        loader=PackageLoader("loadtest.comparison.report_page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    of_systems = colours(results.systems)
    behind = results.workload(WORKLOAD)
    drawings = {
        "throughput": throughput(results, of_systems),
        "timeline": "" if behind is None else timeline(behind, of_systems),
        "evaluated": evaluated(results, of_systems),
        "memory": memory(results, of_systems),
    }
    written: str = environment.get_template("page.html").render(
        results=results,
        headline=headline(results),
        bars=bar_rows(results.verdicts),
        drawings={name: Markup(drawing) for name, drawing in drawings.items()},
        distributions=[
            (workload, Markup(drawing))
            for workload in results.workloads
            if (drawing := distributions(workload, of_systems))
        ],
        figures=[
            (workload, systems_of(workload), figure_rows(workload, baseline))
            for workload in results.workloads
        ],
        failures=failures(results),
        baseline=baseline,
    )
    return written
