"""The sandbox that templates run in: what models' templates are written for, within bounds.

A template comes out of a model's file. It reaches nothing outside, and what it writes, the texts
and numbers it makes and what it counts through are bounded. It is no prison: loops over long
lists, or texts doubled by `~`, can still take long. So render where waiting harms nobody.
"""

from collections.abc import Callable, Mapping
from datetime import datetime

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError, safe_range

MAX_TEXT_CHARS = 2**24  # no frame holds more
MAX_COUNTED = 10**6  # by all of a template's ranges together; jinja2 bounds each of them
MAX_INT_BITS = 4096


class GenerationBlock(Extension):  # type: ignore[misc]  # mypy may have no jinja2
    """`{% generation %}`: marks for training what the assistant says; here it is its content."""

    tags = frozenset({"generation"})

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what is in the block."""
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class Sandbox(ImmutableSandboxedEnvironment):  # type: ignore[misc]  # likewise
    """jinja2's sandbox, in which no operator makes a value without bounds."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Compute `left operator right`.

        Raises:
            SecurityError: that would be too large.
        """
        if _is_too_large(operator, left, right):
            raise SecurityError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


def sandboxed(template: str, context: Mapping[str, object], to_json: Callable[..., str]) -> str:
    """Return the template's text; raises whatever the template does."""
    sandbox = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationBlock],
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals["raise_exception"] = _raise_exception
    sandbox.globals["strftime_now"] = _strftime_now
    sandbox.globals["range"] = _counted_range()
    pieces: list[str] = []
    n_chars = 0
    for piece in sandbox.from_string(template).generate(**context):
        pieces.append(piece)
        n_chars += len(piece)
        if n_chars > MAX_TEXT_CHARS:
            raise SecurityError(f"it writes more than {MAX_TEXT_CHARS} characters")
    return "".join(pieces)


def _is_too_large(operator: str, left: object, right: object) -> bool:
    match operator, left, right:
        case "+", str() | list() | tuple(), str() | list() | tuple():
            return len(left) + len(right) > MAX_TEXT_CHARS
        case "*", int(), int():
            return left.bit_length() + right.bit_length() > MAX_INT_BITS
        case ("*", str() | list() | tuple() as items, int(n)) | (
            "*",
            int(n),
            str() | list() | tuple() as items,
        ):
            return len(items) * n > MAX_TEXT_CHARS
        case "**", int(), int():
            return left.bit_length() * right > MAX_INT_BITS
        case _:
            return False


def _counted_range() -> Callable[..., range]:
    n_counted = 0

    def counted_range(*bounds: int) -> range:
        nonlocal n_counted
        numbers: range = safe_range(*bounds)
        n_counted += len(numbers)
        if n_counted > MAX_COUNTED:
            raise OverflowError(f"its ranges are of more than {MAX_COUNTED} numbers together")
        return numbers

    return counted_range


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
