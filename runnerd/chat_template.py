"""Rendering a model's Jinja template, and the markers that stand for what is not its own."""

import json
import re
import secrets
import string
from collections.abc import Mapping

from runnerd_protocol.messages import MediaPart, Part, TextPart

RECOGNISABLE_CHARS = 8  # so much of a marker does not come about by chance
SECRET_CHARS = 32


class TemplateFailed(Exception):
    """The template cannot be rendered, or does to a marker what must not be done to it."""


class Markers:
    """Words that nobody can guess, each for a part of the prompt."""

    def __init__(self) -> None:
        letters = string.ascii_letters + string.digits
        middle = "".join(secrets.choice(letters) for _ in range(SECRET_CHARS))
        # Of both cases, so that neither lower() nor upper() leaves a marker whole.
        self._secret = f"Ma{middle}X"
        self._pattern = re.compile(f"{self._secret}([0-9]+)Y")
        self._parts: list[Part] = []
        self._within: dict[int, str] = {}  # the text with markers that a part was made of
        self._remains = _pieces_of(middle.lower())

    def mark(self, part: Part) -> str:
        """Return a word for a part."""
        self._parts.append(part)
        return self._word(len(self._parts) - 1)

    def to_json(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Return a word for a value as JSON, with what its own markers stand for in it.

        Raises:
            TemplateFailed: there is an image in it, or a piece of a marker.
        """
        # The arguments are those that templates are written for.
        whole = json.dumps(
            self._resolved(value),
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        self._refuse_remains(whole)
        word = self.mark(TextPart(whole))
        self._within[len(self._parts) - 1] = json.dumps(value)
        return word

    def found_in(self, text: str) -> set[str]:
        """Return the words that are in a text, also those that went into JSON there."""
        found: set[int] = set()
        texts = [text]
        while texts:
            numbers = set(map(int, self._pattern.findall(texts.pop()))) - found
            found |= numbers
            texts += [self._within[number] for number in numbers if number in self._within]
        return set(map(self._word, found))

    def split(self, text: str) -> list[Part]:
        """Return the text as parts: its own is special, and its markers are what they stand for.

        Raises:
            TemplateFailed: a piece of a marker is left in it.
        """
        parts: list[Part] = []
        for index, piece in enumerate(self._pattern.split(text)):
            if index % 2:
                parts.append(self._parts[int(piece)])
            elif piece:
                self._refuse_remains(piece)
                parts.append(TextPart(piece, special=True))
        return parts

    def _word(self, number: int) -> str:
        return f"{self._secret}{number:06}Y"  # of one length: sorted, they are in their order

    def _resolved(self, value: object) -> object:
        match value:
            case str():
                return self._pattern.sub(lambda found: self._text_of(int(found[1])), value)
            case Mapping():
                return {self._resolved(name): self._resolved(each) for name, each in value.items()}
            case list() | tuple():
                return [self._resolved(each) for each in value]
            case _:
                return value

    def _text_of(self, number: int) -> str:
        part = self._parts[number]
        if isinstance(part, MediaPart):
            raise TemplateFailed("the chat template writes an image as JSON")
        return part.text if isinstance(part, TextPart) else ""

    def _refuse_remains(self, text: str) -> None:
        lower = text.lower()
        if any(piece in lower for piece in self._remains):
            raise TemplateFailed("the chat template cuts or changes what a message holds")


def _pieces_of(secret: str) -> tuple[str, ...]:
    """Return all that a secret is recognised by, forwards and backwards."""
    starts = range(len(secret) - RECOGNISABLE_CHARS + 1)
    pieces = [secret[start : start + RECOGNISABLE_CHARS] for start in starts]
    return (*pieces, *(piece[::-1] for piece in pieces))


def render(template: str, context: Mapping[str, object], markers: Markers) -> str:
    """Return the template's text.

    Raises:
        TemplateFailed: it is malformed, it gave up or went too far, or jinja2 is not installed.
    """
    try:
        from runnerd.chat_sandbox import sandboxed  # not everybody chats, and has jinja2
    except ModuleNotFoundError as err:
        raise TemplateFailed("chat needs jinja2; to install it: pip install jinja2") from err
    try:
        return sandboxed(template, context, markers.to_json)
    except TemplateFailed:
        raise
    except Exception as err:  # foreign code: it may raise whatever it likes
        raise TemplateFailed(f"the chat template failed: {err}") from err
