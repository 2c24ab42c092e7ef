"""Reads a GBNF grammar as llama.cpp does, and refuses what it could not compile in good time.

Nested groups are recursion to llama.cpp's parser, repetitions are copies, and `{5,2}` is a loop
without an end: none of that may reach it. What is read are rules without their characters, for
`grammar_rules` to look at.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from runnerd.engine.llama.grammar_rules import Rules, check_rules
from runnerd.errors import BadGrammar

MAX_BYTES = 2**18  # a schema of 64 KiB can come to this; to read it takes 0.3 s
MAX_DEPTH = 100  # of groups; llama.cpp's parser has no limit but its stack
MAX_REPETITIONS = 1000
MAX_ELEMENTS = 50_000  # characters and references, with all copies

TOKEN = re.compile(
    r"""
    (?P<space>[ \t]+|\#[^\r\n]*) | (?P<newline>\r\n?|\n) | (?P<define>::=)
    | (?P<name>[a-zA-Z0-9-]+)
    | (?P<literal>"(?:[^"\\]|\\.)*") | (?P<set>\[(?:[^\]\\]|\\.)*\]) | (?P<any>\.)
    | (?P<repeat>[*+?]|\{\s*[0-9]+\s*(?:,\s*(?:[0-9]+\s*)?)?\})
    | (?P<open>\() | (?P<close>\)) | (?P<or>\|)
    """,
    re.VERBOSE | re.DOTALL,
)
CHARACTER = re.compile(
    r"""\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]-])|[^\\]""", re.DOTALL
)


def check_grammar(text: str, start: str) -> None:
    """Make sure that llama.cpp will compile a grammar, soon and without harm.

    Raises:
        BadGrammar: it is malformed or too large, and where.
    """
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError as err:
        raise BadGrammar(f"the grammar has half a character at {err.start}") from err
    if n_bytes > MAX_BYTES:
        raise BadGrammar(f"a grammar of {n_bytes} bytes, the limit is {MAX_BYTES}")
    if "\0" in text:
        raise BadGrammar(f"the grammar has a NUL at {text.index(chr(0))}")
    check_rules(_Reader(text).rules(), start)


@dataclass(slots=True)
class _Open:
    """A rule or group that is being read; an item is a reference (None: characters), and a size."""

    rule_id: int
    items: list[tuple[int | None, int]] = field(default_factory=list)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._rules = Rules()
        self._open: list[_Open] = []  # a rule, and groups in it
        self._n_elements = 0
        self._is_repeatable = False  # whether a repetition may come next
        self._may_break = False  # whether a newline here does not end the rule

    def rules(self) -> Rules:
        name: re.Match[str] | None = None
        for token in self._tokens():
            kind = token.lastgroup
            if self._open:
                self._read(token)
            elif name is None and kind == "name":
                name = token
            elif name is not None and kind == "define":
                self._open.append(_Open(self._rules.define(name.group())))
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
        if kind == "repeat":
            self._repeat(token)
            return
        self._may_break = kind == "or"
        self._is_repeatable = kind not in ("or", "open")
        match kind:
            case "name":
                self._add(self._rules.named(token.group()), 1, at)
            case "any":
                self._add(None, 1, at)
            case "literal" | "set":
                n_characters = self._count(token)
                self._is_repeatable = n_characters > 0
                self._add(None, n_characters, at)
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

    def _count(self, token: re.Match[str]) -> int:
        """Return how many characters a literal or set names; its escapes are llama.cpp's."""
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
        least, most = _bounds(token.group())
        for bound in (least, most):
            if bound is not None and bound > MAX_REPETITIONS:
                raise self._error(at, f"{bound} repetitions, the limit is {MAX_REPETITIONS}")
        if most is not None and most < least:
            raise self._error(at, f"at least {least} repetitions, and at most {most}")
        repeated, n_elements = self._open[-1].items.pop()
        n_optional = 1 if most is None else most - least
        repetition = self._rules.repeat(repeated, max(least, most or 1), can_be_none=least == 0)
        self._spend(n_optional * (n_elements + 3), at)  # a rule for each
        self._add(repetition, n_elements * least + 1, at)

    def _add(self, rule_id: int | None, n_elements: int, at: int) -> None:
        self._open[-1].items.append((rule_id, n_elements))
        self._spend(n_elements, at)

    def _spend(self, n_elements: int, at: int) -> None:
        self._n_elements += n_elements
        if self._n_elements > MAX_ELEMENTS:
            raise self._error(at, f"more than {MAX_ELEMENTS} characters and references")

    def _end_sequence(self) -> None:
        top = self._open[-1]
        self._rules.extend(top.rule_id, [rule_id for rule_id, _ in top.items])
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


def _bounds(text: str) -> tuple[int, int | None]:
    match text:
        case "*":
            return 0, None
        case "+":
            return 1, None
        case "?":
            return 0, 1
    numbers = [number.strip()[:10] for number in text[1:-1].split(",")]  # 10 digits are too many
    least = int(numbers[0])
    if len(numbers) == 1:
        return least, least
    return least, int(numbers[1]) if numbers[1] else None
