r"""A JSON schema's pattern as GBNF.

A part of ECMAScript's regular expressions: characters, sets, groups, alternatives in a group,
repetitions. What the pattern says is of the string's value, so a character is written as JSON
writes it; of a set, those that JSON would have to escape are left out.
"""

import json
import re
from collections.abc import Iterable, Iterator

from runnerd.engine.llama.grammar_text import MAX_REPETITIONS
from runnerd.errors import BadGrammar

MAX_CHARACTERS = 512
MAX_GROUPS = 32

Range = tuple[int, int]

CLASSES: dict[str, tuple[Range, ...]] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x20, 0x20),),
}
CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
# Not in a JSON string by itself: controls, the quote, the backslash. Ascending.
ESCAPED_IN_JSON: tuple[Range, ...] = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
PIECE = re.compile(
    r"\\(?P<escaped>.)"
    r"|\[(?P<negated>\^?)(?P<members>(?:[^\]\\]|\\.)+)\]"
    r"|\{(?P<least>[0-9]{1,9})(?:(?P<comma>,)(?P<most>[0-9]{0,9}))?\}"
    r"|(?P<open>\((?:\?:)?)|.",
    re.DOTALL,
)
MEMBER = re.compile(r"\\(?P<escaped>.)|(?P<plain>.)", re.DOTALL)


def gbnf_pattern(pattern: object) -> str:
    """Return what a string may hold, from ^ to $, as a sequence for a grammar's rule.

    Raises:
        BadGrammar: it is malformed or too large, or asks for what cannot be done.
    """
    if not isinstance(pattern, str):
        raise BadGrammar("it is not a string")
    if len(pattern) > MAX_CHARACTERS:
        raise BadGrammar(f"{len(pattern)} characters, the limit is {MAX_CHARACTERS}")
    if pattern.count("(") > MAX_GROUPS:
        raise BadGrammar(f"more than {MAX_GROUPS} groups")
    if len(pattern) < 2 or pattern[0] != "^" or pattern[-1] != "$":
        raise BadGrammar(f"{pattern[:50]!r} is not anchored with ^ and $")
    return " ".join(_pieces(pattern[1:-1]))


def _pieces(text: str) -> Iterator[str]:
    n_open = 0
    before = "nothing"  # that can be repeated; or an item, or its quantifier
    for match in PIECE.finditer(text):
        piece, at = match.group(), match.start() + 1
        if piece in ("*", "+", "?") or match["least"]:
            if before == "quantifier" and piece == "?":  # lazy: the same texts
                before = "nothing"
                continue
            if before != "item":
                raise BadGrammar(f"nothing to repeat for {piece} at {at}")
            before = "quantifier"
            yield _quantifier(match) if match["least"] else piece
        elif match["open"]:
            n_open += 1
            before = "nothing"
            yield "("
        elif piece == ")":
            n_open -= 1
            if n_open < 0:
                raise BadGrammar(f"a ) at {at} that nothing opens")
            before = "item"
            yield piece
        elif piece == "|":
            if n_open == 0:
                raise BadGrammar(f"the | at {at} is not in a group, so ^ and $ are not for all")
            before = "nothing"
            yield piece
        else:
            before = "item"
            yield _item(match, at)
    if n_open:
        raise BadGrammar("a ( that nothing closes")


def _quantifier(match: re.Match[str]) -> str:
    least, most = int(match["least"]), int(match["most"] or match["least"])
    if max(least, most) > MAX_REPETITIONS:
        raise BadGrammar(f"{max(least, most)} repetitions, the limit is {MAX_REPETITIONS}")
    if most < least:
        raise BadGrammar(f"{match.group()} is the wrong way round")
    return match.group()


def _item(match: re.Match[str], at: int) -> str:
    piece, escaped = match.group(), match["escaped"]
    if match["members"]:
        return _set(_members(match["members"], at), is_negated=bool(match["negated"]), at=at)
    if escaped is None:
        if piece == ".":
            return _set((), is_negated=True, at=at)
        if piece in "^$[]{}\\":
            raise BadGrammar(f"{piece} at {at} is not supported there, or has no partner")
        return _literal(piece)
    if escaped in CLASSES:
        return _set(CLASSES[escaped], is_negated=False, at=at)
    if escaped.isalnum() and escaped not in CONTROLS:
        raise _unsupported(escaped, at)
    return _literal(CONTROLS.get(escaped, escaped))


def _literal(character: str) -> str:
    written = json.dumps(character, ensure_ascii=False)[1:-1]
    return '"' + written.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _members(text: str, at: int) -> list[Range]:
    ranges: list[Range] = []
    first: int | None = None  # of a range that may follow
    is_range = False
    for match in MEMBER.finditer(text):
        escaped, plain = match["escaped"], match["plain"]
        if escaped in CLASSES:
            if is_range:
                raise BadGrammar(f"a range to {match.group()} in the set at {at}")
            ranges.extend(CLASSES[escaped])
            first = None
            continue
        if escaped is not None and escaped.isalnum() and escaped not in CONTROLS:
            raise _unsupported(escaped, at)
        if plain == "-" and first is not None and not is_range and match.end() < len(text):
            is_range = True
            continue
        code = ord(plain if escaped is None else CONTROLS.get(escaped, escaped))
        if is_range:
            assert first is not None
            if code < first:
                raise BadGrammar(f"a range the wrong way round in the set at {at}")
            ranges[-1] = (first, code)
            first, is_range = None, False
        else:
            ranges.append((code, code))
            first = code
    return ranges


def _set(ranges: Iterable[Range], *, is_negated: bool, at: int) -> str:
    if is_negated:
        return "[^" + "".join(map(_range, (*ranges, *ESCAPED_IN_JSON))) + "]"
    kept = [part for whole in ranges for part in _without_escaped(*whole)]
    if not kept:
        raise BadGrammar(f"the set at {at} has nothing but what JSON escapes")
    return "[" + "".join(map(_range, kept)) + "]"


def _without_escaped(first: int, last: int) -> Iterator[Range]:
    for low, high in ESCAPED_IN_JSON:
        if last < low:
            break
        if first < low:
            yield first, low - 1
        first = max(first, high + 1)
    if first <= last:
        yield first, last


def _range(bounds: Range) -> str:
    first, last = bounds
    return _code(first) if first == last else f"{_code(first)}-{_code(last)}"


def _code(code: int) -> str:
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02X}" if code < 0x100 else f"\\U{code:08X}"


def _unsupported(escaped: str, at: int) -> BadGrammar:
    return BadGrammar(f"\\{escaped} at {at} is not supported")
