"""Every token of *long-behind-short*: a row for each request, a tick for each token."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from loadtest.comparison.exchange import Exchange
from loadtest.comparison.report_page.drawing import STYLE, WIDTH, svg, write_over
from loadtest.comparison.report_page.palette import ALARM, FAINT, INK
from loadtest.comparison.results import WorkloadResult

WORKLOAD = "long-behind-short"
BEFORE_S, AFTER_S = 1.0, 0.5  # of what is shown, around the prompts
TICK = 0.36  # half the height of a tick, in rows


def timeline(workload: WorkloadResult, colours: Mapping[str, str]) -> str:
    """Draw the tokens of every system's first good turn, on one scale; "" of none."""
    turns = {
        turn.system: turn.exchanges
        for turn in reversed(workload.turns)
        if not turn.error and _asked_at(turn.exchanges, "long") is not None
    }
    shown = [name for name in colours if name in turns]
    if not shown:
        return ""
    n_rows = sum(len(turns[name]) for name in shown)
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(2 * WIDTH, 0.28 * n_rows + 0.75 * len(shown) + 0.3), layout="constrained"
        )
        heights = [len(turns[name]) + 0.6 for name in shown]
        grid = figure.subplots(
            len(shown), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        stop_s = 0.0
        for axes, name in zip(grid[:, 0], shown, strict=True):
            stop_s = max(stop_s, _draw(axes, name, turns[name], colours[name]))
        grid[-1, 0].set_xlim(-BEFORE_S, stop_s + AFTER_S)
        grid[-1, 0].set_xlabel("seconds since the long prompt was sent")
        return svg(figure, "timeline", "Every token of the requests, by system")


def _asked_at(exchanges: Sequence[Exchange], role: str) -> float | None:
    return next((each.asked_at for each in exchanges if each.role == role), None)


def _draw(axes: Axes, name: str, exchanges: Sequence[Exchange], colour: str) -> float:
    """Draw one system's rows; return when the last prompt was answered."""
    zero = _asked_at(exchanges, "long")
    assert zero is not None, "only turns with a long prompt are drawn"
    longest = (0.0, 0.0)
    stop_s = 0.0
    for row, each in enumerate(exchanges):
        at = [arrived_at - zero for arrived_at, _ in each.arrivals]
        axes.add_patch(PathPatch(_ticks(at, row), edgecolor=colour, linewidth=0.8, fill=False))
        if each.role == "stream":
            gaps = [(after - before, before) for before, after in pairwise(at) if after > 0]
            longest = max([longest, *gaps])
        elif at:
            axes.plot([each.asked_at - zero], [row], ">", color=INK, markersize=5)
            axes.plot([each.asked_at - zero, at[0]], [row, row], ":", color=FAINT, linewidth=1.2)
            told = f"first token after {at[0] - (each.asked_at - zero):.2f} s"
            write_over(axes, at[-1], row, told, INK, "left")
            stop_s = max(stop_s, at[-1])
    gap_s, before = longest
    axes.axvspan(before, before + gap_s, color=ALARM, alpha=0.15, linewidth=0)
    axes.set_title(f"{name}: streams pause for up to {gap_s:.2f} s", color=colour)
    axes.set_yticks(range(len(exchanges)), [each.role for each in exchanges])
    axes.set_ylim(len(exchanges) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    return stop_s


def _ticks(at: Sequence[float], row: int) -> Path:
    """Return a tick for each instant, as one path."""
    points = [(instant, row + side) for instant in at for side in (-TICK, TICK)]
    return Path(points or [(0.0, row)], [Path.MOVETO, Path.LINETO] * len(at) or [Path.MOVETO])
