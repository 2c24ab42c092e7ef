"""Jinja templates of models in a sandbox, and the markers that stand for what is not theirs."""

import json
import re
import secrets
from collections.abc import Mapping
from datetime import datetime

from runnerd_protocol.messages import Part, TextPart


class TemplateFailed(Exception):
    """The template cannot be rendered."""


class Markers:
    """Words that nobody can guess, each for a part of the prompt."""

    def __init__(self) -> None:
        # Of both cases, so that neither lower() nor upper() leaves a marker whole.
        self._secret = f"Content{secrets.token_hex(16)}X"
        self._pattern = re.compile(f"{self._secret}([0-9]+)Y")
        self._parts: list[Part] = []
        self._within: dict[int, str] = {}  # the text with markers that a part was made of

    def mark(self, part: Part) -> str:
        """Return a word for a part."""
        self._parts.append(part)
        return f"{self._secret}{len(self._parts) - 1}Y"

    def to_json(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Return a word for a value as JSON, with what its own markers stand for in it."""
        # The arguments are those that templates are written for.
        whole = json.dumps(
            self._resolved(value),
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        word = self.mark(TextPart(whole))
        self._within[len(self._parts) - 1] = json.dumps(value)
        return word

    def _resolved(self, value: object) -> object:
        match value:
            case str():
                return self._pattern.sub(lambda found: self._text_of(int(found[1])), value)
            case Mapping():
                return {str(name): self._resolved(each) for name, each in value.items()}
            case list() | tuple():
                return [self._resolved(each) for each in value]
            case _:
                return value

    def _text_of(self, number: int) -> str:
        part = self._parts[number]
        return part.text if isinstance(part, TextPart) else ""

    def is_in(self, word: str, text: str) -> bool:
        """Whether what a word stands for is in the text, maybe as part of JSON."""
        if word in text:
            return True
        numbers = map(int, self._pattern.findall(text))
        return any(self.is_in(word, self._within.get(number, "")) for number in numbers)

    def split(self, text: str) -> list[Part]:
        """Return the text as parts: its own is special, and its markers are what they stand for."""
        parts: list[Part] = []
        for index, piece in enumerate(self._pattern.split(text)):
            if index % 2:
                parts.append(self._parts[int(piece)])
            elif piece:
                parts.append(TextPart(piece, special=True))
        return parts


def render(template: str, context: Mapping[str, object], markers: Markers) -> str:
    """Return the template's text.

    Raises:
        TemplateFailed: it is malformed, it gave up, or jinja2 is not installed.
    """
    try:
        import jinja2  # not everybody chats
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as err:
        raise TemplateFailed("chat needs jinja2; to install it: pip install jinja2") from err

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = markers.to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        text: str = environment.from_string(template).render(**context)
    except Exception as err:  # foreign code: it may raise whatever it likes
        raise TemplateFailed(f"the chat template failed: {err}") from err
    return text


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
