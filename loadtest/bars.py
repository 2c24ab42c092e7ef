"""Bars: figures that were measured, each with the limit that it has to keep."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Sign = Literal[">=", "<="]


class Bar(Struct, frozen=True):
    """A figure and its limit; `sign` says on which side of it the figure must be."""

    name: str
    value: float
    sign: Sign
    limit: float
    is_met: bool


def at_least(name: str, value: float, limit: float) -> Bar:
    """Return a bar that is met from its limit upwards."""
    return Bar(name, value, ">=", limit, is_within(value, ">=", limit))


def at_most(name: str, value: float, limit: float) -> Bar:
    """Return a bar that is met up to its limit."""
    return Bar(name, value, "<=", limit, is_within(value, "<=", limit))


def is_within(value: float, sign: Sign, limit: float) -> bool:
    """Say whether a figure is on the side of a limit that it must be on."""
    return value >= limit if sign == ">=" else value <= limit


def missed(bars: Iterable[Bar]) -> list[Bar]:
    """Return the bars that are not met."""
    return [bar for bar in bars if not bar.is_met]
