"""Figures as blocks side by side: prompt tokens evaluated, and memory."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure

from loadtest.comparison.report_page.drawing import STYLE, WIDTH, svg
from loadtest.comparison.report_page.palette import FAINT, INK
from loadtest.comparison.results import Results, WorkloadResult

THICK = 0.78
MB = 1e6


class Block(NamedTuple):
    """One system's figure in a group; `inner` is the part of it that is drawn full."""

    group: str
    system: str
    value: float
    inner: float
    told: str


def evaluated(results: Results, colours: Mapping[str, str]) -> str:
    """Draw how much of the prompts was evaluated, where systems differ in that; "" of nothing."""
    blocks = [block for each in results.workloads for block in _evaluated(each, colours)]
    about = "Prompt tokens evaluated, of those asked, by workload and system"
    return _draw(blocks, colours, "evaluated", "prompt tokens evaluated, % of those asked", about)


def _evaluated(workload: WorkloadResult, colours: Mapping[str, str]) -> list[Block]:
    found: list[Block] = []
    for name in colours:
        n_evaluated = workload.median(name, "n_evaluated")
        n_prompt = workload.median(name, "n_prompt")
        if n_evaluated and n_prompt:
            share = 100 * n_evaluated / n_prompt
            told = f"{n_evaluated:,.0f} of {n_prompt:,.0f}"
            found.append(Block(workload.name, name, share, share, told))
    shares = [block.value for block in found]
    return found if shares and min(shares) < 95 else []


def memory(results: Results, colours: Mapping[str, str]) -> str:
    """Draw what systems hold after a workload: the one that most were seen in; "" of none."""
    about = "Memory of each system, its own and with the files it maps"
    best = max((_memory(each, colours) for each in results.workloads), key=len, default=[])
    label = "MB; full: its own, pale: with the model's file"
    return _draw(best, colours, "memory", label, about)


def _memory(workload: WorkloadResult, colours: Mapping[str, str]) -> list[Block]:
    found = []
    for name in colours:
        of_one = [turn for turn in workload.turns if turn.system == name and not turn.error]
        used = [turn.used for turn in of_one if turn.used is not None]
        if used:
            most = max(used, key=lambda usage: usage.resident_bytes)
            resident, own = most.resident_bytes / MB, most.anonymous_bytes / MB
            found.append(
                Block(workload.name, name, resident, own, f"{own:,.0f} of {resident:,.0f} MB")
            )
    return found


def _draw(
    blocks: Sequence[Block], colours: Mapping[str, str], name: str, label: str, about: str
) -> str:
    if not blocks:
        return ""
    with matplotlib.rc_context(STYLE):
        groups = list(dict.fromkeys(block.group for block in blocks))
        n_lines = len(blocks) + 1.3 * len(groups)
        figure = Figure(figsize=(WIDTH, 0.25 * n_lines + 0.7), layout="constrained")
        axes = figure.add_subplot()
        most = max(block.value for block in blocks)
        at = 0.0
        for group in groups:
            axes.text(0, at, group, color=INK, weight="bold", va="center")
            for block in (each for each in blocks if each.group == group):
                at += 1
                colour = colours[block.system]
                axes.barh(at, block.value, THICK, color=colour, alpha=0.35)
                axes.barh(at, block.inner, THICK, color=colour)
                told = f"{block.system}: {block.told}"
                axes.annotate(
                    *(told, (block.value, at)),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=9,
                )
            at += 1.3
        axes.set_ylim(at - 0.6, -0.7)
        axes.set_xlim(0, 1.75 * most)  # room for what is written behind the longest
        axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1.05 * most])
        axes.set_yticks([])
        axes.spines["left"].set_color(FAINT)
        axes.set_xlabel(label)
        return svg(figure, name, about)
