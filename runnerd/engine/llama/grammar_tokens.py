"""The words of GBNF, the notation of llama.cpp's grammars."""

import re

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


def code(character: str) -> int:
    """Return the code point that a match of CHARACTER stands for."""
    if len(character) == 1:
        return ord(character)
    if character[1] in "xuU":
        return int(character[2:], 16)
    return ord({"t": "\t", "r": "\r", "n": "\n"}.get(character[1], character[1]))


def bounds(repeat: str) -> tuple[int, int | None]:
    """Return how often a repetition repeats, at least and at most (None: without end)."""
    match repeat:
        case "*":
            return 0, None
        case "+":
            return 1, None
        case "?":
            return 0, 1
    numbers = [number.strip()[:10] for number in repeat[1:-1].split(",")]  # 10 digits: too many
    least = int(numbers[0])
    if len(numbers) == 1:
        return least, least
    return least, int(numbers[1]) if numbers[1] else None
