"""Numbers between bounds, digit by digit, as GBNF."""

from math import ceil, floor

from runnerd.errors import BadGrammar

MAX_DIGITS = 20  # of a bound: what 64 bits hold
FREE = 10**16 - 1  # where there is no bound, numbers have up to 16 digits, as a double holds
FRACTION = '("." [0-9]{1,16})?'
NO_FRACTION = '("." "0"{1,16})?'

Number = int | float
Range = tuple[str, str, str]  # numbers of as many digits, from and to; and what comes behind


def integers(least: int | None, most: int | None) -> str:
    """Return alternatives for the integers of a closed range; None: no bound."""
    least, most = _closed(least, most)
    parts: list[str] = []
    if least < 0:
        parts.append(f'"-" {_tree(_ranges(max(1, -most), -least))}')
    if most >= 0:
        parts.append(_tree(_ranges(max(0, least), most)))
    return " | ".join(parts)


def reals(least: int | None, most: int | None) -> str:
    """Return alternatives for the numbers of a closed range between integers."""
    least, most = _closed(least, most)
    parts: list[str] = []
    if least < 0:
        parts.append(f'"-" {_reals(max(0, -most), -least)}')
    if most >= 0:
        parts.append(_reals(max(0, least), most))
    return " | ".join(parts)


def integer_bounds(
    minimum: Number | None,
    above: Number | bool | None,
    maximum: Number | None,
    below: Number | bool | None,
) -> tuple[int | None, int | None]:
    """Return the closed range that `minimum`, `exclusiveMinimum` and so on leave to integers.

    A boolean, as older drafts have it, makes the other bound exclusive.
    """
    least = (
        [] if minimum is None else [ceil(minimum) + (above is True and minimum == ceil(minimum))]
    )
    if above is not None and not isinstance(above, bool):
        least.append(floor(above) + 1)
    most = (
        [] if maximum is None else [floor(maximum) - (below is True and maximum == floor(maximum))]
    )
    if below is not None and not isinstance(below, bool):
        most.append(ceil(below) - 1)
    return max(least, default=None), min(most, default=None)


def _closed(least: int | None, most: int | None) -> tuple[int, int]:
    for bound in (least, most):
        if bound is not None and abs(bound) >= 10**MAX_DIGITS:
            raise BadGrammar(f"a bound of more than {MAX_DIGITS} digits")
    if most is None:
        most = max(FREE, 10 * abs(least or 0))
    if least is None:
        least = -max(FREE, 10 * abs(most))
    if most < least:
        raise BadGrammar(f"no number is at least {least} and at most {most}")
    return least, most


def _reals(least: int, most: int) -> str:
    below = _ranges(least, most - 1, FRACTION) if least < most else []
    return _tree([*below, *_ranges(most, most, NO_FRACTION)])


def _ranges(least: int, most: int, tail: str = "") -> list[Range]:
    """Return a range of numbers that are not negative as ranges of numbers of one length each."""
    ranges: list[Range] = []
    while len(str(least)) < len(str(most)):
        nines = 10 ** len(str(least)) - 1
        ranges.append((str(least), str(nines), tail))
        least = nines + 1
    return [*ranges, (str(least), str(most), tail)]


def _tree(ranges: list[Range]) -> str:
    """Return what numbers of these ranges consist of, one digit decided after the other."""
    (_, _, tail), *_ = ranges
    free = [(len(low), "0" * len(low), "9" * len(low), tail) for low, _, _ in ranges]
    shortest = free[0][0]
    if all(
        way == (shortest + n, *one) for n, (way, one) in enumerate(zip(free, ranges, strict=True))
    ):
        longest = shortest + len(ranges) - 1
        return f"[0-9]{{{shortest},{longest}}} {tail}".rstrip() if longest else tail
    ways: list[tuple[int, int, list[Range]]] = []  # from a digit to a digit, and what comes then
    for digit in range(10):
        rest = [after for one in ranges if (after := _behind(str(digit), *one))]
        if ways and ways[-1][1:] == (digit - 1, rest):
            ways[-1] = (ways[-1][0], digit, rest)
        elif rest:
            ways.append((digit, digit, rest))
    parts = [f"[{first}-{last}] {_tree(rest)}".rstrip() for first, last, rest in ways]
    parts += [tail for low, _, tail in ranges if not low]
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def _behind(digit: str, low: str, high: str, tail: str) -> Range | None:
    """Return what of a range is left behind a digit."""
    if not low or not low[0] <= digit <= high[0]:
        return None
    n_more = len(low) - 1
    return (
        low[1:] if digit == low[0] else "0" * n_more,
        high[1:] if digit == high[0] else "9" * n_more,
        tail,
    )
