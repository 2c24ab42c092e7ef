"""Throughput against streams, and how times are distributed."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import log10

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    NullFormatter,
    NullLocator,
)

from loadtest.comparison.exchange import Exchange
from loadtest.comparison.figures import all_itls_ms, ttfts_s
from loadtest.comparison.report_page.drawing import STYLE, WIDTH, label_ends, svg, write_over
from loadtest.comparison.report_page.palette import OURS
from loadtest.comparison.results import Results, WorkloadResult

THROUGHPUT = "tokens_per_s"
N_POINTS = 150  # of a curve, and as many of its last values
PLAIN = (0.0, 0.25, 0.5, 0.75, 1.0)
NINES = (0.0, 0.5, 0.9, 0.99, 0.999)


def throughput(results: Results, colours: Mapping[str, str]) -> str:
    """Draw tokens per second against streams, and what the model alone can do; "" of nothing."""
    steady = _steady(results)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        axes = figure.add_subplot()
        ends: list[tuple[str, float, float, str]] = []
        for system in results.systems:
            points = [
                (n_streams, spread)
                for n_streams, workload in steady
                if (spread := workload.summaries.get(system.name, {}).get(THROUGHPUT))
            ]
            if not points:
                continue
            x = [n_streams for n_streams, _ in points]
            y = [spread.median for _, spread in points]
            colour = colours[system.name]
            style = "--" if system.is_limit else "-"
            width = 2.6 if system.name == OURS else 1.6
            axes.plot(x, y, style, color=colour, linewidth=width, marker="o", markersize=4)
            low = [spread.least for _, spread in points]
            high = [spread.greatest for _, spread in points]
            axes.vlines(x, low, high, colors=colour, linewidth=1.0, alpha=0.6)
            ends.append((system.name, x[-1], y[-1], colour))
        if not ends:
            return ""
        counts = [n_streams for n_streams, _ in steady]
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
        axes.set_xlabel("streams at once")
        axes.set_ylabel("generated, tokens/s")
        axes.set_ylim(bottom=0)
        label_ends(axes, ends)
        return svg(figure, "throughput", "Tokens per second against streams, by system")


def _steady(results: Results) -> list[tuple[int, WorkloadResult]]:
    found = [(re.fullmatch(r"steady-(\d+)", each.name), each) for each in results.workloads]
    return sorted(((int(name[1]), each) for name, each in found if name), key=lambda pair: pair[0])


def distributions(workload: WorkloadResult, colours: Mapping[str, str]) -> str:
    """Draw which share of requests had their first token, and of tokens came, within a time."""
    exchanges = {name: _exchanges(workload, name) for name in colours}
    first = {name: [t for t in ttfts_s(of_one) if t > 0] for name, of_one in exchanges.items()}
    gaps = {name: [g for g in all_itls_ms(of_one) if g > 0] for name, of_one in exchanges.items()}
    if not any(first.values()):
        return ""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_cdfs(left, first, colours, float)
        left.set_xlabel("TTFT, s")
        left.set_ylabel("share within")
        left.set_yticks(PLAIN, [f"{share:.0%}" for share in PLAIN])
        _draw_cdfs(right, gaps, colours, _nines)
        right.set_xlabel("ITL, ms")
        left.set_ylim(0, 1.02)
        right.set_ylim(bottom=0)
        right.set_yticks([*map(_nines, NINES)], [f"{100 * share:.4g}%" for share in NINES])
        about = f"Times to first token and between tokens in {workload.name}, by system"
        return svg(figure, f"cdf-{workload.name}", about)


def _exchanges(workload: WorkloadResult, system: str) -> list[Exchange]:
    turns = [each for each in workload.turns if each.system == system and not each.error]
    return [exchange for turn in turns for exchange in turn.exchanges]


def _draw_cdfs(
    axes: Axes,
    values: Mapping[str, Sequence[float]],
    colours: Mapping[str, str],
    height_of: Callable[[float], float],
) -> None:
    there = {name: of_one for name, of_one in values.items() if of_one}
    axes.set_xscale("log")
    if not there:
        return
    low, high = _limits([time for of_one in there.values() for time in of_one])
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 40 else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    for number, (name, of_one) in enumerate(there.items()):
        times, shares = _curve(of_one)
        heights = [height_of(share) for share in shares]
        width = 2.4 if name == OURS else 1.5
        axes.plot(times, heights, color=colours[name], linewidth=width, drawstyle="steps-post")
        # Each at a height of its own, so that no name lies on another.
        height = height_of(0.9) * (1 - number / len(there))
        at = times[bisect_right(heights[:-1], height)]
        is_left = log10(at / low) < 0.6 * log10(high / low)
        write_over(axes, at, height, name, colours[name], "left" if is_left else "right")


def _curve(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the times of a distribution, and which share is within each; not all of many."""
    ordered = sorted(values)
    count = len(ordered)
    shown = {int(n) for n in np.linspace(0, count - 1, N_POINTS)}
    shown |= set(range(max(0, count - N_POINTS), count))
    picked = sorted(shown)
    times = [ordered[n] for n in picked]
    return [times[0], *times], [0.0, *((n + 0.5) / count for n in picked)]


def _nines(share: float) -> float:
    """Return how high a share is drawn: 90, 99 and 99.9 % as far from one another."""
    return -log10(1 - share)


def _limits(times: Sequence[float]) -> tuple[float, float]:
    """Return what an axis has to show: at least a factor of ten."""
    low, high = min(times), max(times)
    wider = max(1.25, (10 * low / high) ** 0.5)
    return low / wider, high * wider
