"""How a log line looks: for people, or as JSON.

Whatever a client puts into a field, it can neither begin a line of its own nor steer a terminal.
"""

import json
import math
from collections.abc import Callable, Mapping

import structlog

Fields = Mapping[str, object]

HEAD_CHARS = 6000  # what is kept of a long text; with the tail it holds most tracebacks whole
TAIL_CHARS = 2000

# Before a line on a terminal: takes away what stands there without an end, as the bar that
# shows a load does.
ERASE_LINE = "\r\x1b[2K"

# The console renderer writes these as they are, and the long ones below the line; every other
# value goes through repr().
CONSOLE_VERBATIM = {"event", "level", "logger", "logger_name"}
LONG_FIELDS = {"exception", "stack"}  # have lines of their own


def escape(text: str) -> str:
    r"""Return the text with everything but printable characters written as \n, \x1b, \u202e."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def plain(value: object) -> object:
    """Return the value as something that both renderers can write, and not too long."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)  # JSON has no NaN
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
    text = str(value)
    n_cut = len(text) - HEAD_CHARS - TAIL_CHARS
    if n_cut <= 0:
        return text
    return f"{text[:HEAD_CHARS]} [{n_cut} characters cut] {text[-TAIL_CHARS:]}"


def render_json(line: Fields) -> bytes:
    """Return a line as JSON."""
    # Printable ASCII only: C1 controls, line separators and lone surrogates come out escaped.
    return json.dumps(line, separators=(",", ":")).encode()


def console_renderer(*, is_terminal: bool) -> Callable[[Fields], bytes]:
    """Return what writes lines for people; in colours on a terminal."""
    erase = ERASE_LINE if is_terminal else ""
    renderer = structlog.dev.ConsoleRenderer(
        colors=is_terminal,
        repr_native_str=True,
        sort_keys=False,
        exception_formatter=structlog.dev.plain_traceback,
    )

    def render(line: Fields) -> bytes:
        shown = dict(line)
        for name in CONSOLE_VERBATIM & shown.keys():
            shown[name] = escape(str(shown[name]))
        for name in LONG_FIELDS & shown.keys():
            # May take lines of its own here, but none that looks like an event.
            texts = str(shown[name]).splitlines()
            shown[name] = "\n".join(f"    {escape(text)}" for text in texts)
        text = erase + str(renderer(None, "", shown))
        return text.encode(errors="backslashreplace")

    return render
