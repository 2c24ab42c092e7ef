"""What a grammar's rules do to llama.cpp, found out before it sees them.

It expands the rules that may come next until each begins with a character, and keeps every way.
A rule that comes back to itself without a character in between (left recursion) never ends; it
looks for that itself, but takes for empty only what is so at first sight. And a few rules can
have a million ways. Both are found here, in time linear in the size of the grammar.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from runnerd.errors import BadGrammar

MAX_RULES = 20_000  # groups and repetitions included
MAX_WORK = 1_000_000  # rules expanded before a character, times how deep: 8 bytes each
# Of parts in a row that can be empty, also by repetition. Where they begin alike, llama.cpp tries
# every choice of them to refuse a token: 2 ms for 12, 150 ms for 18.
MAX_OPTIONAL = 12

Sequence = list[int | None]


@dataclass(slots=True)
class _Rule:
    """Alternatives of references; None stands for characters."""

    name: str = ""
    alternatives: list[Sequence] = field(default_factory=list)
    n_copies: int = 1
    is_defined: bool = True


class Rules:
    """The rules of a grammar, by number; groups and repetitions are rules without a name."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._by_name: dict[str, int] = {}

    def named(self, name: str) -> int:
        """Return the number of a rule, whether it is defined by now or not."""
        rule_id = self._by_name.get(name)
        if rule_id is None:
            rule_id = self._by_name[name] = self.add()
            self._rules[rule_id].name = name
            self._rules[rule_id].is_defined = False
        return rule_id

    def define(self, name: str) -> int:
        """Begin a rule; what it was before is forgotten."""
        rule_id = self.named(name)
        self._rules[rule_id].is_defined = True
        self._rules[rule_id].alternatives = []
        return rule_id

    def add(self) -> int:
        """Begin a group."""
        if len(self._rules) == MAX_RULES:
            raise BadGrammar(f"more than {MAX_RULES} rules, groups and repetitions")
        self._rules.append(_Rule())
        return len(self._rules) - 1

    def repeat(self, repeated: int | None, n_copies: int, *, can_be_none: bool) -> int:
        """Add a repetition."""
        rule_id = self.add()
        rule = self._rules[rule_id]
        rule.alternatives = [[repeated], []] if can_be_none else [[repeated]]
        rule.n_copies = n_copies
        return rule_id

    def extend(self, rule_id: int, sequence: Sequence) -> None:
        """Add an alternative."""
        self._rules[rule_id].alternatives.append(sequence)

    def name(self, rule_id: int) -> str:
        """Return a rule's name; none for a group."""
        return self._rules[rule_id].name

    def is_defined(self, name: str) -> bool:
        """Whether there is such a rule."""
        return name in self._by_name and self._rules[self._by_name[name]].is_defined

    def __iter__(self) -> Iterator[_Rule]:
        return iter(self._rules)


def check_rules(rules: Rules, start: str) -> None:
    """Refuse rules that llama.cpp would refuse, or never be done with.

    Raises:
        BadGrammar: which rule it is.
    """
    if not rules.is_defined(start):
        raise BadGrammar(f"there is no rule called {start}")
    for rule in rules:
        if not rule.is_defined:
            raise BadGrammar(f"there is no rule called {rule.name}")
    empty = _can_be_empty(rules)
    _check_optional(rules, empty)
    _check_work(rules, empty)


def _can_be_empty(rules: Rules) -> list[bool]:
    """Tell of each rule whether no character is one of its texts."""
    every = list(rules)
    empty = [False] * len(every)
    waiting: list[list[list[int]]] = [[] for _ in every]  # by rule: [its user, how many it lacks]
    found: deque[int] = deque()
    for rule_id, rule in enumerate(every):
        for sequence in rule.alternatives:
            if None in sequence:
                continue
            lacks = [rule_id, len(sequence)]
            for reference in sequence:
                assert reference is not None
                waiting[reference].append(lacks)
            if not sequence:
                found.append(rule_id)
    while found:
        rule_id = found.popleft()
        if empty[rule_id]:
            continue
        empty[rule_id] = True
        for lacks in waiting[rule_id]:
            lacks[1] -= 1
            if lacks[1] == 0:
                found.append(lacks[0])
    return empty


def _check_optional(rules: Rules, empty: list[bool]) -> None:
    for rule_id, rule in enumerate(rules):
        for sequence in rule.alternatives:
            n_optional = 0
            for reference in sequence:
                is_optional = reference is not None and empty[reference]
                n_optional = n_optional + rule.n_copies if is_optional else 0
                if n_optional > MAX_OPTIONAL:
                    raise BadGrammar(
                        f"{_named(rules, rule_id)} has more than {MAX_OPTIONAL} parts in a row "
                        "that can be empty"
                    )


def _check_work(rules: Rules, empty: list[bool]) -> None:
    """Count for each rule what expanding it takes, from those that begin with characters up."""
    every = list(rules)
    firsts = [[first for s in rule.alternatives for first in _firsts(s, empty)] for rule in every]
    users: list[list[int]] = [[] for _ in every]
    n_open = [0] * len(every)
    for rule_id, references in enumerate(firsts):
        for reference in references:
            if reference is not None:
                users[reference].append(rule_id)
                n_open[rule_id] += 1
    n_visits, depth = [0] * len(every), [0] * len(every)
    ready = deque(rule_id for rule_id, n in enumerate(n_open) if n == 0)
    n_done = 0
    while ready:
        rule_id = ready.popleft()
        n_done += 1
        expanded = [reference for reference in firsts[rule_id] if reference is not None]
        visits = len(every[rule_id].alternatives) + sum(n_visits[r] for r in expanded)
        if any(empty[reference] for reference in expanded):
            visits *= every[rule_id].n_copies
        n_visits[rule_id] = visits
        depth[rule_id] = 1 + max((depth[r] for r in expanded), default=0)
        if visits * depth[rule_id] > MAX_WORK:
            raise BadGrammar(f"{_named(rules, rule_id)} can begin in too many ways")
        for user in users[rule_id]:
            n_open[user] -= 1
            if n_open[user] == 0:
                ready.append(user)
    if n_done < len(every):
        stuck = [rule_id for rule_id, n in enumerate(n_open) if n > 0]
        named = next((rule_id for rule_id in stuck if rules.name(rule_id)), stuck[0])
        raise BadGrammar(f"{_named(rules, named)} leads back to itself without a character")


def _firsts(sequence: Sequence, empty: list[bool]) -> Iterator[int | None]:
    """Give what of a sequence can come first."""
    for reference in sequence:
        yield reference
        if reference is None or not empty[reference]:
            return


def _named(rules: Rules, rule_id: int) -> str:
    name = rules.name(rule_id)
    return f"the rule {name}" if name else "a group or repetition"
