"""Whether a grammar may have to be read in several ways at once.

It has not to be where the next character decides: the ways on from each place begin with
different characters. That is the LL(1) condition.
"""

from collections import deque

from runnerd.engine.llama.grammar_rules import Characters, Rules


def is_decided_by_characters(rules: Rules, empty: list[bool]) -> bool:
    """Whether at every choice the next character leaves one way; `empty`: what can be nothing."""
    firsts = _firsts(rules, empty)
    follows = _follows(rules, empty, firsts)
    for rule_id, rule in enumerate(rules):
        taken = 0
        ways = [_begin(s, firsts, empty) for s in rule.alternatives]
        if rule.may_stop:
            ways.append((0, True))
        for first, is_empty in ways:
            mask = first | follows[rule_id] if is_empty else first
            if mask & taken:
                return False
            taken |= mask
    return True


def _begin(
    sequence: list["int | Characters"], firsts: list[int], empty: list[bool]
) -> tuple[int, bool]:
    """Return the characters that a sequence can begin with, and whether it can be nothing."""
    mask = 0
    for item in sequence:
        if isinstance(item, Characters):
            return mask | item.first, False
        mask |= firsts[item]
        if not empty[item]:
            return mask, False
    return mask, True


def _firsts(rules: Rules, empty: list[bool]) -> list[int]:
    sources: list[list[int]] = []  # of each rule: the rules that it can begin with
    firsts: list[int] = []
    for rule in rules:
        leading: list[int] = []
        mask = 0
        for sequence in rule.alternatives:
            for item in sequence:
                if isinstance(item, Characters):
                    mask |= item.first
                    break
                leading.append(item)
                if not empty[item]:
                    break
        sources.append(leading)
        firsts.append(mask)
    return _spread(firsts, sources)


def _follows(rules: Rules, empty: list[bool], firsts: list[int]) -> list[int]:
    follows = [0] * len(firsts)
    sources: list[list[int]] = [[] for _ in firsts]  # of each rule: those at whose end it can be
    for rule_id, rule in enumerate(rules):
        for sequence in rule.alternatives:
            after, is_last = 0, True
            for item in reversed(sequence):
                if isinstance(item, Characters):
                    after, is_last = item.first, False
                    continue
                follows[item] |= after
                if rule.is_loop:
                    follows[item] |= firsts[rule_id]
                if is_last:
                    sources[item].append(rule_id)
                if empty[item]:
                    after |= firsts[item]
                else:
                    after, is_last = firsts[item], False
    return _spread(follows, sources)


def _spread(masks: list[int], sources: list[list[int]]) -> list[int]:
    """Add to each mask those of its sources, and of their sources."""
    users: list[list[int]] = [[] for _ in masks]
    for rule_id, its in enumerate(sources):
        for source in its:
            users[source].append(rule_id)
    waiting = deque(range(len(masks)))
    while waiting:
        source = waiting.popleft()
        for user in users[source]:
            if masks[source] & ~masks[user]:
                masks[user] |= masks[source]
                waiting.append(user)
    return masks
