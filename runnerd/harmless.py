"""Text of others on a terminal: it may say anything, but not steer it."""

import json

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def harmless(text: str) -> str:
    """Return the text with control characters replaced, other than newline and tab."""
    return "".join(char if char.isprintable() or char in "\n\t" else REPLACEMENT for char in text)


def harmless_line(text: str, n_chars: int = 200) -> str:
    """Return the text on one line, cut to a length, with control characters replaced."""
    line = " ".join(text[: 4 * n_chars].split())  # a long one is not looked at to its end
    if len(line) > n_chars:
        line = line[: n_chars - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return harmless(line)


def harmless_json(encoded: bytes) -> str:
    """Return the same JSON with control characters escaped, also those that JSON allows."""
    text = encoded.decode()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
