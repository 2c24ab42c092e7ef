"""Whether the images among some inputs are whole: all their rows, and the marks with them."""

from collections.abc import Iterable, Mapping

from runnerd.core.prompt import Prompt
from tests.helpers import BEGIN_MARK, BETWEEN_MARK, END_MARK

Units = Mapping[int, tuple[int, ...]]


def units_of(prompt: Prompt) -> dict[int, tuple[int, ...]]:
    """Return the inputs of each unit of a prompt, by the first of its media rows."""
    units: dict[int, tuple[int, ...]] = {}
    for group in prompt.groups:
        start, stop = group.start - group.lead, group.stop + group.trail
        first = next(i for i in prompt.inputs[start:stop] if i < 0)
        units[first] = prompt.inputs[start:stop]
    return units


def assert_whole_units(inputs: Iterable[int], units: Units) -> None:
    """Assert that no row of an image is without all that belongs to it, and no mark either."""
    left = list(inputs)
    at = 0
    while at < len(left):
        first = left[at + 1] if left[at] == BEGIN_MARK and at + 1 < len(left) else left[at]
        assert first not in (BEGIN_MARK, BETWEEN_MARK, END_MARK), "a mark without its image"
        unit = units[first] if first < 0 else (first,)
        assert tuple(left[at : at + len(unit)]) == unit, "half a unit"
        at += len(unit)
