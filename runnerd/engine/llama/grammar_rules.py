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


@dataclass(frozen=True, slots=True)
class Characters:
    """One character or more; `first` has a bit for each that may be the first, by an `Alphabet`."""

    first: int


Sequence = list[int | Characters]


@dataclass(slots=True)
class Rule:
    """Alternatives of references and characters.

    A repetition of at least one has its one alternative, of which `n_copies` may follow each
    other: `is_loop`; and may be fewer: `may_stop`.
    """

    name: str = ""
    alternatives: list[Sequence] = field(default_factory=list)
    n_copies: int = 1
    is_loop: bool = False
    may_stop: bool = False
    is_defined: bool = True


class Rules:
    """The rules of a grammar, by number; groups and repetitions are rules without a name."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []
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
        self._rules.append(Rule())
        return len(self._rules) - 1

    def repeat(self, repeated: int | Characters, least: int, most: int | None) -> int:
        """Add a repetition; None: as often as one likes."""
        rule_id = self.add()
        rule = self._rules[rule_id]
        rule.alternatives = [[repeated]] if least else [[repeated], []]
        rule.n_copies = max(least, most or 1)
        rule.is_loop = most is None or most > 1
        rule.may_stop = least > 0 and most != least
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

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)


@dataclass(frozen=True, slots=True)
class Order:
    """All rules in an order: each behind those that it can begin with.

    `empty` says of each rule whether it can be nothing, `most_begins` in how many ways one can
    begin at most.
    """

    order: list[int]
    empty: list[bool]
    most_begins: int


def check_rules(rules: Rules, start: str) -> Order:
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
    order, most_begins = _check_work(rules, empty)
    return Order(order, empty, most_begins)


def _can_be_empty(rules: Rules) -> list[bool]:
    """Tell of each rule whether no character is one of its texts."""
    every = list(rules)
    empty = [False] * len(every)
    waiting: list[list[list[int]]] = [[] for _ in every]  # by rule: [its user, how many it lacks]
    found: deque[int] = deque()
    for rule_id, rule in enumerate(every):
        for sequence in rule.alternatives:
            references = [item for item in sequence if not isinstance(item, Characters)]
            if len(references) < len(sequence):
                continue
            lacks = [rule_id, len(sequence)]
            for reference in references:
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
                is_optional = not isinstance(reference, Characters) and empty[reference]
                n_optional = n_optional + rule.n_copies if is_optional else 0
                if n_optional > MAX_OPTIONAL:
                    raise BadGrammar(
                        f"{named(rules, rule_id)} has more than {MAX_OPTIONAL} parts in a row "
                        "that can be empty"
                    )


def _check_work(rules: Rules, empty: list[bool]) -> tuple[list[int], int]:
    """Count for each rule what expanding it takes, from those that begin with characters up.

    Returns:
        The rules in that order, and the most that one takes.
    """
    every = list(rules)
    firsts = [[first for s in rule.alternatives for first in _firsts(s, empty)] for rule in every]
    users: list[list[int]] = [[] for _ in every]
    n_open = [0] * len(every)
    for rule_id, references in enumerate(firsts):
        for reference in references:
            if not isinstance(reference, Characters):
                users[reference].append(rule_id)
                n_open[rule_id] += 1
    n_visits, depth, n_nested = [0] * len(every), [0] * len(every), [0] * len(every)
    ready = deque(rule_id for rule_id, n in enumerate(n_open) if n == 0)
    done: list[int] = []
    while ready:
        rule_id = ready.popleft()
        done.append(rule_id)
        expanded = [item for item in firsts[rule_id] if not isinstance(item, Characters)]
        visits = len(every[rule_id].alternatives) + sum(n_visits[r] for r in expanded)
        n_copies = every[rule_id].n_copies
        optional = [n_nested[reference] for reference in expanded if empty[reference]]
        n_nested[rule_id] = n_copies * max(optional, default=1)
        if optional:
            visits *= n_copies
            if n_copies > 1 and n_nested[rule_id] > MAX_OPTIONAL:
                raise BadGrammar(
                    f"{named(rules, rule_id)} repeats what can be empty, "
                    f"in all more than {MAX_OPTIONAL} times"
                )
        n_visits[rule_id] = visits
        depth[rule_id] = 1 + max((depth[r] for r in expanded), default=0)
        if visits * depth[rule_id] > MAX_WORK:
            raise BadGrammar(f"{named(rules, rule_id)} can begin in too many ways")
        for user in users[rule_id]:
            n_open[user] -= 1
            if n_open[user] == 0:
                ready.append(user)
    if len(done) < len(every):
        stuck = [rule_id for rule_id, n in enumerate(n_open) if n > 0]
        first = next((rule_id for rule_id in stuck if rules.name(rule_id)), stuck[0])
        raise BadGrammar(f"{named(rules, first)} leads back to itself without a character")
    return done, max(n_visits)


def _firsts(sequence: Sequence, empty: list[bool]) -> Iterator[int | Characters]:
    """Give what of a sequence can come first."""
    for reference in sequence:
        yield reference
        if isinstance(reference, Characters) or not empty[reference]:
            return


def named(rules: Rules, rule_id: int) -> str:
    """Call a rule by its name, for an error's message."""
    name = rules.name(rule_id)
    return f"the rule {name}" if name else "a group or repetition"
