r"""A JSON schema's pattern in the form that the bindings' converter understands.

The converter copies sets and escapes into a grammar, which knows neither `\d` nor `\.`; and what
a string must not hold (a quote, a backslash, a line's end) a pattern's dot would let through.
"""

import re

from runnerd.errors import BadGrammar

MAX_CHARACTERS = 512
MAX_GROUPS = 32
MAX_REPETITIONS = 100  # the converter writes each of them out, optional ones in a group of its own

CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": " "}
ESCAPED_BY_CONVERTER = set("[](){}|*+?")
NOT_IN_STRINGS = r'"\\\x00-\x1F'
DOT = f"[^{NOT_IN_STRINGS}]"
PIECE = re.compile(
    r"\\(?P<escaped>.)|(?P<set>\[\^?(?:[^\]\\]|\\.)+\])|\{(?P<counts>[0-9, ]*)\}|.", re.DOTALL
)


def gbnf_pattern(pattern: object) -> str:
    """Return a pattern, from ^ to $, without what GBNF does not know.

    Raises:
        BadGrammar: it is too large, or asks for what cannot be done; and where.
    """
    if not isinstance(pattern, str):
        raise BadGrammar("a pattern that is not a string")
    if len(pattern) > MAX_CHARACTERS:
        raise BadGrammar(f"a pattern of {len(pattern)} characters, the limit is {MAX_CHARACTERS}")
    if pattern.count("(") > MAX_GROUPS:
        raise BadGrammar(f"a pattern of more than {MAX_GROUPS} groups")
    if len(pattern) < 2 or pattern[0] != "^" or pattern[-1] != "$" or pattern.endswith(r"\$"):
        raise BadGrammar(f"the pattern {pattern[:50]!r} is not anchored with ^ and $")
    inner = pattern[1:-1].replace("(?:", "(")
    return "^" + "".join(_piece(match, pattern) for match in PIECE.finditer(inner)) + "$"


def _piece(match: re.Match[str], pattern: str) -> str:
    text = match.group()
    escaped, counts = match["escaped"], match["counts"]
    if escaped is not None:
        return _escape(escaped, pattern)
    if match["set"] is not None:
        return _set(text, pattern)
    if counts is not None:
        for count in re.findall("[0-9]+", counts):
            if len(count) > 4 or int(count) > MAX_REPETITIONS:
                raise BadGrammar(
                    f"the pattern {pattern[:50]!r} repeats {count[:10]} times, "
                    f"the limit is {MAX_REPETITIONS}"
                )
        return text
    if text == ".":
        return DOT
    if text in '"^$' or ord(text) < 0x20:
        raise _unsupported(text, pattern)
    return text


def _escape(escaped: str, pattern: str) -> str:
    if escaped in CLASSES:
        return f"[{CLASSES[escaped]}]"
    if escaped == ".":
        return "[.]"
    if escaped in ESCAPED_BY_CONVERTER:
        return "\\" + escaped
    if escaped.isalnum() or escaped in '"\\':
        raise _unsupported("\\" + escaped, pattern)
    return escaped


def _set(text: str, pattern: str) -> str:
    is_negated = text.startswith("[^")
    members = []
    for match in re.finditer(r"\\(.)|(.)", text[2 if is_negated else 1 : -1], re.DOTALL):
        escaped, plain = match.groups()
        if escaped in CLASSES:
            members.append(CLASSES[escaped])
        elif escaped is not None and (escaped.isalnum() or escaped in '"\\'):
            raise _unsupported("\\" + escaped, pattern)
        elif plain is not None and (plain == '"' or ord(plain) < 0x20):
            raise _unsupported(plain, pattern)
        elif escaped is not None:
            members.append("\\" + escaped if escaped in "[]-" else escaped)
        else:
            members.append(plain)
    return f"[{'^' if is_negated else ''}{''.join(members)}{NOT_IN_STRINGS if is_negated else ''}]"


def _unsupported(what: str, pattern: str) -> BadGrammar:
    return BadGrammar(f"the pattern {pattern[:50]!r} has {what!r}, which is not supported")
