"""Generated text on a terminal: it may say anything, but not steer it."""


def harmless(text: str) -> str:
    """Return the text with control characters replaced, other than newline and tab."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )
