"""Rewrites a grammar so that ways which begin alike begin once.

What is left of two ways behind a common beginning becomes a rule; a rule or optional part is
replaced by what it stands for, where that begins as another way does. A list of words becomes a
tree of letters, a union of objects decides at the first name or value that differs. The texts of
the grammar stay the same.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count

from runnerd.engine.llama.grammar_tokens import CHARACTER
from runnerd.errors import BadGrammar

NAME = re.compile("[a-zA-Z0-9-]+")
MOST_ELEMENTS = 1_500_000  # of ways that are made: a recursive grammar may need ever more
MOST_ROUNDS = 16  # of replacing what ways begin with
MOST_BEGINS = 512  # of a rule; a rule of more is not replaced
MOST_NESTED = 50  # rules that begin with each other

Way = tuple[str, ...]
Bodies = Mapping[str, Iterable[re.Match[str]]]  # the words of each rule, without white space


def factored(bodies: Bodies, start: str) -> str:
    """Return the grammar of these rules, as far as it can be reached from the first.

    Raises:
        BadGrammar: it would become too large.
    """
    return _Factoring(bodies).text(start)


class _Factoring:
    def __init__(self, bodies: Bodies) -> None:
        self._prefix = next(
            "x" * n for n in count(1) if not any(name.startswith("x" * n) for name in bodies)
        )
        self._n_left = MOST_ELEMENTS
        self._rules: dict[str, list[Way]] = {}
        self._names: dict[tuple[Way, ...], str] = {}  # of the rules that are new
        self._begins: dict[str, tuple[frozenset[str], bool]] = {}
        for name, tokens in bodies.items():
            self._rules[name] = self._read(iter(tokens))

    def text(self, start: str) -> str:
        # In this order, as those that are written with others stand behind them.
        for name in list(self._rules):
            self._rules[name] = self._apart(self._rules[name])
        written: dict[str, str] = {}
        waiting = deque([start])
        while waiting:
            name = waiting.popleft()
            if name in written:
                continue
            ways = self._factored(name)
            written[name] = f"{name} ::= {' | '.join(map(_joined, ways))}"
            references = map(NAME.match, chain(*ways))
            waiting.extend(reference.group() for reference in references if reference)
        return "\n".join(written.values())

    def _read(self, tokens: Iterator[re.Match[str]]) -> list[Way]:
        """Read the ways up to the end of a group or rule."""
        ways: list[Way] = []
        units: list[Way] = []  # what a repetition would repeat
        for token in tokens:
            match token.lastgroup:
                case "or":
                    ways.append(tuple(chain(*units)))
                    units = []
                case "open":
                    units.append((self._rule(self._read(tokens)),))
                case "close":
                    break
                case "literal":
                    letters = CHARACTER.findall(token.group()[1:-1])
                    units.append(tuple(f'"{letter}"' for letter in letters))
                case "repeat":
                    units.append((self._repeatable(units.pop()) + token.group(),))
                case _:
                    units.append((token.group(),))
        return [*ways, tuple(chain(*units))]

    def _repeatable(self, unit: Way) -> str:
        is_literal = unit[0][0] == unit[0][-1] == '"'
        return self._rule([unit]) if is_literal else unit[0]

    def _rule(self, ways: list[Way]) -> str:
        key = tuple(ways)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"{self._prefix}{len(self._names)}"
            self._rules[name] = ways
        return name

    def _factored(self, name: str) -> list[Way]:
        ways = self._rules[name] = self._apart(self._rules[name])
        together: list[Way] = []
        for group in _by_first(ways).values():
            head, *others = group
            if not others:
                together.append(head)
                continue
            n_common = 1
            shortest = min(map(len, group))
            while n_common < shortest and all(w[n_common] == head[n_common] for w in others):
                n_common += 1
            tails = [way[n_common:] for way in group]
            self._spend(tails)
            rest = self._rule(tails)
            together.append((*head[:n_common], rest))
        return together

    def _apart(self, ways: list[Way]) -> list[Way]:
        """Replace rules until ways that begin with the same letter begin with it as such."""
        for _ in range(MOST_ROUNDS):
            ways = list(dict.fromkeys(ways))
            groups = _by_first(ways)
            users: dict[str, str] = {}
            alike: set[str] = set()
            for first, group in groups.items():
                for letter in {letter for way in group for letter in self._begin(way)}:
                    other = users.setdefault(letter, first)
                    if other != first:
                        alike |= {first, other}
            alike = {first for first in alike if first.removesuffix("?") in self._rules}
            if not alike:
                break
            ways = [new for way in ways for new in self._replaced(way, alike)]
        return list(dict.fromkeys(ways))

    def _replaced(self, way: Way, alike: set[str]) -> list[Way]:
        if not way or way[0] not in alike:
            return [way]
        first, rest = way[0], way[1:]
        if first in self._rules:
            ways = [(*start, *rest) for start in self._rules[first]]
        else:
            ways = [(first[:-1], *rest), rest]
        self._spend(ways)
        return ways

    def _spend(self, ways: list[Way]) -> None:
        self._n_left -= sum(map(len, ways), len(ways))
        if self._n_left < 0:
            raise BadGrammar("a grammar that grows too much when ways begin once")

    def _begin(self, way: Way, depth: int = 0) -> frozenset[str]:
        letters: frozenset[str] = frozenset()
        for element in way:
            some, may_be_empty = self._begin_of(element, depth)
            letters |= some
            if not may_be_empty:
                break
        return letters

    def _begin_of(self, element: str, depth: int) -> tuple[frozenset[str], bool]:
        """Return what an element begins with, and whether it can be nothing, as far as is seen."""
        known = self._begins.get(element)
        if known is not None:
            return known
        if element[-1] in "*?" and element[:-1] in self._rules:
            begin = (self._begin_of(element[:-1], depth)[0], True)
        elif element not in self._rules:
            begin = frozenset([element]), False
        elif depth == MOST_NESTED:
            return frozenset(), False
        else:
            ways = self._rules[element]
            letters = frozenset(chain(*(self._begin(way, depth + 1) for way in ways)))
            begin = (letters if len(letters) <= MOST_BEGINS else frozenset(), () in ways)
        self._begins[element] = begin
        return begin


def _by_first(ways: list[Way]) -> dict[str, list[Way]]:
    groups: dict[str, list[Way]] = {}
    for way in ways:
        groups.setdefault(way[0] if way else "", []).append(way)
    return groups


def _joined(way: Way) -> str:
    """Write elements, letters in a row as one literal."""
    parts: list[str] = []
    is_literal = False
    for element in way:
        was_literal, is_literal = is_literal, element[0] == '"' and element[-1] == '"'
        if was_literal and is_literal:
            parts[-1] = parts[-1][:-1] + element[1:]
        else:
            parts.append(element)
    return " ".join(parts)
