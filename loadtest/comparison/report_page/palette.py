"""The colours of the page: few, told apart in light and dark, and by most eyes.

Pictures are drawn in stand-ins, that become variables of the page's style: so one drawing is
readable on either ground. Blue is ours; what is no system (a limit) is grey.
"""

from collections.abc import Sequence

from loadtest.comparison.results import SystemSeen

OURS = "ours"

INK, FAINT, GROUND, ALARM = "#0a0b0c", "#0a0b0d", "#0a0b0e", "#0a0b0f"
_SYSTEMS = ("#0a0c01", "#0a0c02", "#0a0c03", "#0a0c04", "#0a0c05", "#0a0c06")
_LIMIT = "#0a0c0f"

VARIABLES = {
    INK: "--ink",
    FAINT: "--faint",
    GROUND: "--ground",
    ALARM: "--alarm",
    _LIMIT: "--limit",
    **{colour: f"--system-{n}" for n, colour in enumerate(_SYSTEMS)},
}
"""Stand-ins, and the variables of the style that they become."""


def colours(systems: Sequence[SystemSeen]) -> dict[str, str]:
    """Return the colour of each system: the first is that of ours, whether it is there or not."""
    others = [each.name for each in systems if not each.is_limit and each.name != OURS]
    found = {each.name: _LIMIT for each in systems if each.is_limit}
    found |= {name: _SYSTEMS[1 + n % (len(_SYSTEMS) - 1)] for n, name in enumerate(others)}
    return {OURS: _SYSTEMS[0], **found}
