"""Reads a GBNF grammar as llama.cpp does, and refuses what it could not compile in good time.

Nested groups are recursion to llama.cpp's parser, repetitions are copies, and `{5,2}` is a loop
without an end: none of that may reach it. What is read are rules with no more than the first of
their characters, for `grammar_rules` to look at.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from runnerd.engine.llama.grammar_characters import Alphabet
from runnerd.engine.llama.grammar_rules import Characters, Rules
from runnerd.engine.llama.grammar_tokens import CHARACTER, TOKEN, bounds
from runnerd.errors import BadGrammar

MAX_BYTES = 2**18  # a schema of 64 KiB can come to this; to read it takes 0.3 s
MAX_DEPTH = 100  # of groups; llama.cpp's parser has no limit but its stack
MAX_REPETITIONS = 1000
MAX_ELEMENTS = 50_000  # characters and references, with all copies


@dataclass(slots=True)
class _Open:
    """A rule or group that is being read; an item is a reference or characters, and a size."""

    rule_id: int
    items: list[tuple[int | Characters, int]] = field(default_factory=list)


class Reader:
    """Reads one grammar; `bodies` are then the words of each rule, without white space."""

    def __init__(self, text: str) -> None:
        """Prepare to read a text."""
        self.bodies: dict[str, list[re.Match[str]]] = {}
        self.alphabet = Alphabet(text)
        self._text = text
        self._rules = Rules()
        self._body: list[re.Match[str]] = []
        self._open: list[_Open] = []  # a rule, and groups in it
        self._n_elements = 0
        self._is_repeatable = False  # whether a repetition may come next
        self._may_break = False  # whether a newline here does not end the rule

    def rules(self) -> Rules:
        """Read the rules.

        Raises:
            BadGrammar: it is malformed or too large, and where.
        """
        name: re.Match[str] | None = None
        for token in self._tokens():
            kind = token.lastgroup
            if self._open:
                self._read(token)
            elif name is None and kind == "name":
                name = token
            elif name is not None and kind == "define":
                self._open.append(_Open(self._rules.define(name.group())))
                self._body = self.bodies[name.group()] = []
                self._is_repeatable, self._may_break, name = False, True, None
            elif name is not None or kind != "newline":
                expected = "the name of a rule" if name is None else "::="
                raise self._error(token.start(), f"expected {expected}")
        if name is not None:
            raise self._error(len(self._text), "expected ::=")
        if self._open:
            self._end_rule(len(self._text))
        return self._rules

    def _tokens(self) -> Iterator[re.Match[str]]:
        at = 0
        while at < len(self._text):
            token = TOKEN.match(self._text, at)
            if token is None:
                raise self._error(at, f"unexpected {self._text[at]!r}")
            at = token.end()
            if token.lastgroup != "space":
                yield token

    def _read(self, token: re.Match[str]) -> None:
        kind, at = token.lastgroup, token.start()
        if kind == "newline":
            if len(self._open) == 1 and not self._may_break:
                self._end_rule(at)
            return
        self._body.append(token)
        if kind == "repeat":
            self._repeat(token)
            return
        self._may_break = kind == "or"
        self._is_repeatable = kind not in ("or", "open")
        match kind:
            case "name":
                self._add(self._rules.named(token.group()), 1, at)
            case "any":
                self._add(Characters(self.alphabet.every), 1, at)
            case "literal":
                n_characters = self._n_characters(token)
                self._is_repeatable = n_characters > 0
                if n_characters:
                    first = self.alphabet.first_of(token.group())
                    self._add(Characters(first), n_characters, at)
            case "set":
                n_characters = self._n_characters(token)
                self._add(Characters(self.alphabet.of_set(token.group())), n_characters, at)
            case "or":
                self._end_sequence()
            case "open":
                if len(self._open) > MAX_DEPTH:
                    raise self._error(at, f"groups are nested more than {MAX_DEPTH} deep")
                self._open.append(_Open(self._rules.add()))
            case "close" if len(self._open) > 1:
                self._end_sequence()
                self._add(self._open.pop().rule_id, 1, at)
            case _:
                raise self._error(at, f"unexpected {token.group()}")

    def _n_characters(self, token: re.Match[str]) -> int:
        """Count the characters a literal or set names, whose escapes must be llama.cpp's."""
        at, end = token.start() + 1, token.end() - 1
        is_set = token.lastgroup == "set"
        if is_set and self._text.startswith("^", at):
            at += 1
        if is_set and at == end:
            raise self._error(token.start(), "a set without characters")
        n_characters = 0
        while at < end:
            character = CHARACTER.match(self._text, at, end)
            if character is None:
                raise self._error(at, f"unknown escape {self._text[at : at + 2]}")
            at = character.end()
            n_characters += 1
        return n_characters

    def _repeat(self, token: re.Match[str]) -> None:
        at = token.start()
        if not self._is_repeatable:
            raise self._error(at, "nothing to repeat")
        least, most = bounds(token.group())
        for bound in (least, most):
            if bound is not None and bound > MAX_REPETITIONS:
                raise self._error(at, f"{bound} repetitions, the limit is {MAX_REPETITIONS}")
        if most is not None and most < least:
            raise self._error(at, f"at least {least} repetitions, and at most {most}")
        repeated, n_elements = self._open[-1].items.pop()
        n_optional = 1 if most is None else most - least
        repetition = self._rules.repeat(repeated, least, most)
        self._spend(n_optional * (n_elements + 3), at)  # a rule for each
        self._add(repetition, n_elements * least + 1, at)

    def _add(self, item: int | Characters, n_elements: int, at: int) -> None:
        self._open[-1].items.append((item, n_elements))
        self._spend(n_elements, at)

    def _spend(self, n_elements: int, at: int) -> None:
        self._n_elements += n_elements
        if self._n_elements > MAX_ELEMENTS:
            raise self._error(at, f"more than {MAX_ELEMENTS} characters and references")

    def _end_sequence(self) -> None:
        top = self._open[-1]
        self._rules.extend(top.rule_id, [item for item, _ in top.items])
        top.items = []

    def _end_rule(self, at: int) -> None:
        if len(self._open) > 1:
            raise self._error(at, "expected )")
        self._end_sequence()
        self._open.pop()

    def _error(self, at: int, what: str) -> BadGrammar:
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        return BadGrammar(f"line {line}, column {column}: {what[:200]}")
