"""What a message may hold, and how a template is shown it: texts, and images between them.

A template is shown a content as one text, in which a marker stands for each of its texts and
images. Many templates would take a list, too, and write marks of their own where an image is in
it; but those the engine adds. Templates that know nothing but lists are shown one with that text.
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping, Sequence

from runnerd.chat_template import TemplateFailed
from runnerd.prompt_parts import read_image
from runnerd.streams import ClientError
from runnerd_protocol.messages import MediaPart, Part, TextPart

ContentPart = str | bytes | os.PathLike[str] | MediaPart | Mapping[str, object]
"""A text, the content of an image file or the path of one, or a map with a `type`.

`{"type": "text", "text": ...}`, `{"type": "image", "data": bytes}`, or an `image_url` whose
`{"url": ...}` is a data: URL.
"""
Content = str | Sequence[ContentPart]

_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)
SHOWN_CHARS = 40  # of a URL that is refused; the rest may be megabytes


class ChatError(ClientError):
    """The template cannot render these messages."""


def parts_of(content: object, number: int, max_image_bytes: int) -> list[Part]:
    """Return the content of the `number`-th message as parts; reads files.

    Raises:
        ChatError: there is something in it that is neither text nor image.
        CannotRead, CannotSend: the file of an image cannot be read, or is too large.
    """
    match content:
        case None | "":
            return []
        case str():
            return [TextPart(content)]
        case list() | tuple():
            parts = (
                _part_of(each, f"message {number}.content[{index}]", max_image_bytes)
                for index, each in enumerate(content)
            )
            return [part for part in parts if part != TextPart("")]
        case _:
            raise ChatError(f"the content of message {number} is no text, and no list of parts")


def _part_of(item: object, place: str, max_image_bytes: int) -> Part:
    match item:
        case str():
            return TextPart(item)
        case bytes():
            return MediaPart(item)
        case MediaPart():
            return item
        case os.PathLike():
            return MediaPart(read_image(item, max_image_bytes))
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "image", "data": bytes(data)}:
            return MediaPart(data)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return MediaPart(_data_of(url, place))
        case {"type": kind}:
            raise ChatError(
                f"{place} of type {kind!r} is neither a text with `text`, an image with `data`,"
                " nor an image_url with `url`"
            )
        case _:
            raise ChatError(f"{place} is a {type(item).__name__}, neither text nor image")


def _data_of(url: str, place: str) -> bytes:
    head = _DATA_URL.match(url)
    if head is None:
        shown = url if len(url) <= SHOWN_CHARS else f"{url[:SHOWN_CHARS]}..."
        raise ChatError(f"{place} is no data: URL in base64, and nothing is fetched: {shown!r}")
    try:
        return base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError) as err:  # the latter for what is not ASCII
        raise ChatError(f"{place} is not in base64: {err}") from err


class _Listed(list[dict[str, str]]):
    """A content as a list. A template that writes it like a text does not know lists."""

    def __repr__(self) -> str:
        raise TemplateFailed("the chat template takes contents for texts")


class _Item(dict[str, str]):
    """The one item of a list; likewise."""

    def __repr__(self) -> str:
        raise TemplateFailed("the chat template takes parts of contents for texts")


def listed(turn: Mapping[str, object]) -> dict[str, object]:
    """Return a message with its content as a list of one text, as some templates want it."""
    content = turn.get("content")
    if not isinstance(content, str) or not content:
        return dict(turn)
    return {**turn, "content": _Listed([_Item(type="text", text=content)])}
