"""How many ways to go on a grammar has at most behind one character.

llama.cpp keeps every way to read a text as a place of its own. By so many these can multiply with
each character, and a call takes the square of their number. Where rules that can be nothing
follow each other through a recursion, there is no bound: that is refused.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

from runnerd.engine.llama.grammar_characters import N_LATIN
from runnerd.engine.llama.grammar_rules import Characters, Order, Rules, named
from runnerd.errors import BadGrammar

MOST_ALIKE = 16  # ways that begin with the same character
# In all: with 50 places, which take 0.05 ms and are not noticed, as many more take 0.2 s.
MOST_ONWARD = 64
MOST_UPDATES = 100_000  # of what can follow a rule; usually a few for each

N_CLASSES = 768  # of characters
LATIN, EVERY = (1 << N_LATIN) - 1, (1 << N_CLASSES) - 1
MANY = 2000  # ways: as good as any larger number

Counts = npt.NDArray[np.int16]  # of ways, by their first character


def most_ways(rules: Rules, order: Order) -> int:
    """Return how many ways on there can be at a place.

    Raises:
        BadGrammar: too many of them begin alike, and where.
    """
    most = _Places(rules, order).most()
    if most > MOST_ONWARD:
        raise BadGrammar(
            f"an ambiguous grammar with {most} ways on at one place, the limit is {MOST_ONWARD}"
        )
    return most


class _Places:
    def __init__(self, rules: Rules, order: Order) -> None:
        self._rules, self._empty = rules, order.empty
        every = list(rules)
        # Of the beginnings of each rule: by character, and in all in the last column.
        self._begin: Counts = np.zeros((len(every), N_CLASSES + 1), np.int16)
        self._follow = np.zeros_like(self._begin)
        for rule_id in order.order:
            rule = every[rule_id]
            for sequence in rule.alternatives:
                for item in sequence:
                    n_copies = rule.n_copies if self._is_empty(item) else 1
                    begin = self._begin[rule_id] + n_copies * self._of(item)
                    self._begin[rule_id] = np.minimum(begin, MANY)
                    if not self._is_empty(item):
                        break
            self._check(self._begin[rule_id], rule_id)

    def most(self) -> int:
        """Find the largest number of ways of a place."""
        onward, most = self._local()
        waiting = deque(range(len(onward)))
        n_updates = 0
        while waiting:
            rule_id = waiting.popleft()
            for item, rest in onward[rule_id]:
                more = self._follow[rule_id] if rest is None else self._follow[rule_id] + rest
                self._check(more, rule_id)
                most = max(most, int(more[-1]))
                if item is None or not (more > self._follow[item]).any():
                    continue
                np.maximum(self._follow[item], more, out=self._follow[item])
                waiting.append(item)
                n_updates += 1
                if n_updates > MOST_UPDATES:
                    raise BadGrammar(f"{named(self._rules, rule_id)} is too entangled with others")
        return most

    def _local(self) -> tuple[list[list[tuple[int | None, Counts | None]]], int]:
        """Look at what follows each item in its own sequence.

        Returns:
            By rule, behind which items it can end, and what can come before its end; and the
            largest number of ways so far.
        """
        onward: list[list[tuple[int | None, Counts | None]]] = []
        most = int(self._begin[:, -1].max())
        for rule_id, rule in enumerate(self._rules):
            onward.append([])
            for sequence in rule.alternatives:
                rest: Counts | None = self._begin[rule_id] if rule.is_loop else None
                may_end = True
                for item in reversed(sequence):
                    reference = None if isinstance(item, Characters) else item
                    if may_end and (reference is not None or rest is not None):
                        onward[-1].append((reference, rest))
                    if rest is not None:
                        self._check(rest, rule_id)
                        most = max(most, int(rest[-1]))
                        if reference is not None:
                            follow = self._follow[reference]
                            np.maximum(follow, rest, out=follow)
                    if self._is_empty(item):
                        rest = self._of(item) if rest is None else rest + self._of(item)
                    else:
                        rest, may_end = self._of(item), False
        return onward, most

    def _is_empty(self, item: int | Characters) -> bool:
        return not isinstance(item, Characters) and self._empty[item]

    def _of(self, item: int | Characters) -> Counts:
        if not isinstance(item, Characters):
            begin: Counts = self._begin[item]
            return begin
        # The characters beyond Latin-1 share what bits are left: then more seem to be alike.
        mask, others = item.first & LATIN, item.first >> N_LATIN
        while others:
            mask |= (others << N_LATIN) & EVERY
            others >>= N_CLASSES - N_LATIN
        octets = np.frombuffer(mask.to_bytes(N_CLASSES // 8, "little"), np.uint8)
        return np.append(np.unpackbits(octets, bitorder="little"), np.uint8(1)).astype(np.int16)

    def _check(self, counts: Counts, rule_id: int) -> None:
        n_alike = counts[:-1].max()
        if n_alike > MOST_ALIKE:
            raise BadGrammar(
                f"in {named(self._rules, rule_id)} more than {MOST_ALIKE} ways to go on begin "
                "with the same character"
            )
