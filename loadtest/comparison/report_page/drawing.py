"""From drawings to SVG that stands in a page: its own names, the page's colours, no references."""

import re
from collections.abc import Sequence
from io import StringIO
from typing import Literal
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.typing import RcKeyType

from loadtest.comparison.report_page.palette import FAINT, GROUND, INK, VARIABLES

WIDTH = 5.6  # inches: of a phone, or of half a wide page
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
STYLE: dict[RcKeyType, object] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same drawing gives the same file
    "text.parse_math": False,  # a name with dollars is a name
    "font.family": "sans-serif",
    "font.size": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def svg(figure: Figure, name: str, about: str) -> str:
    """Return a drawing as an element for a page; `about` is for those who cannot see it."""
    written = StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(written, format="svg", bbox_inches="tight", metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{SVG}}}")
        for key, value in list(element.items()):
            del element.attrib[key]
            element.set(key.replace(f"{{{XLINK}}}", ""), _renamed(key, value, name))
    root.attrib.pop("height", None)
    root.attrib.pop("width", None)
    root.set("role", "img")
    root.set("aria-label", about)
    return ElementTree.tostring(root, encoding="unicode")


def _renamed(key: str, value: str, name: str) -> str:
    """Return an attribute's value with names of this drawing alone, and the page's colours."""
    if key == "id":
        return f"{name}-{value}"
    if key.endswith("href"):
        return value.replace("#", f"#{name}-", 1)
    value = value.replace("url(#", f"url(#{name}-")
    return re.sub(r"#0a0[bc][0-9a-f]{2}", _variable, value)


def _variable(found: re.Match[str]) -> str:
    return f"var({VARIABLES[found.group()]})"


def label_ends(axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Write names beside the ends of lines, from the right, and none on another.

    Each end is a name, where it is, and its colour. Needs the final limits of the axes.
    """
    height = axes.get_window_extent().height / 100 * 72  # points, at the dots of a Figure
    low, high = axes.get_ylim()
    line = 13.5 * (high - low) / height
    at = float("-inf")
    for name, x, y, colour in sorted(ends, key=lambda end: end[2]):
        at = max(y, at + line)
        axes.annotate(
            name,
            (x, at),
            xytext=(8, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            annotation_clip=False,
        )


def write_over(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    colour: str,
    align: Literal["left", "center", "right"],
) -> None:
    """Write a small text where lines may be: on ground of its own, and beside the point."""
    axes.annotate(
        text,
        (x, y),
        xytext=({"left": 6, "center": 0, "right": -6}[align], 0),
        textcoords="offset points",
        color=colour,
        fontsize=9,
        ha=align,
        va="center",
        annotation_clip=False,
        bbox={"facecolor": GROUND, "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
    )
