"""Grammars that are a choice of texts: `root ::= "yes" | "no"`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runnerd.engine.base import ConstraintKind
from runnerd.engine.reference.tokenizer import END_TOKENS
from runnerd.errors import BadGrammar

_ROOT = re.compile(r"\s*root\s*::=")
_LITERAL = re.compile(r'\s*"((?:[^"\\\n]|\\.)*)"')
_OR = re.compile(r"\s*\|")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True)
class Literals:
    """The texts that a generation may be."""

    texts: tuple[bytes, ...]

    def allowed(self, said: bytes) -> list[int]:
        """Return the tokens that may follow what was said: after a whole text only the end."""
        follows = {text[len(said)] for text in self._begun(said) if len(text) > len(said)}
        ends = END_TOKENS if said in self.texts else ()
        return [*sorted(follows), *ends]

    def _begun(self, said: bytes) -> Iterator[bytes]:
        return (text for text in self.texts if text.startswith(said))


def compiled(kind: ConstraintKind, text: str) -> Literals:
    """Read a grammar.

    Raises:
        BadGrammar: it is not of this form, with the place; or it is a JSON schema.
    """
    if kind == "json_schema":
        raise BadGrammar("the reference engine has no JSON schemas")
    texts: list[bytes] = []
    pattern, expected, place = _ROOT, "root ::=", 0
    while (match := pattern.match(text, place)) is not None:
        place = match.end()
        if pattern is _LITERAL:
            texts.append(_unescaped(match[1], match.start(1)))
            if not text[place:].strip():
                return Literals(tuple(texts))
            pattern, expected = _OR, "|"
        else:
            pattern, expected = _LITERAL, "a literal"
    raise _error(text[place : place + 1], place, expected)


def _unescaped(literal: str, place: int) -> bytes:
    for match in _ESCAPE.finditer(literal):
        if match[1] not in _ESCAPED:
            raise _error(match[0], place + match.start(), r"one of \n \t \r \\ \"")
    try:
        return _ESCAPE.sub(lambda match: _ESCAPED[match[1]], literal).encode()
    except UnicodeEncodeError as err:
        raise _error(literal[err.start], place + err.start, "a character") from err


def _error(found: str, place: int, expected: str) -> BadGrammar:
    return BadGrammar(
        f"grammar at character {place}: {found!a} found, {expected} expected", place=place
    )
