"""One message as a template sees it: markers in the place of all that may be a user's words.

What a template looks up must stay as it is: the names of a message's fields and of a call's, and
the ids that templates compare and count. Those are checked; every other text gets a marker, the
names of a call's arguments too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from runnerd.chat_content import ChatError, Content, parts_of
from runnerd.chat_template import Markers
from runnerd_protocol.messages import MediaPart, TextPart

Role = Literal["system", "developer", "user", "assistant", "tool"]
Path = tuple[str, ...]

# Where names are looked up by templates, and where ids are compared by them.
NAMED: frozenset[Path] = frozenset(
    {(), ("tool_calls",), ("tool_calls", "function"), ("function_call",)}
)
WITH_IDS: frozenset[Path] = frozenset({(), ("tool_calls",)})
IDS = frozenset({"id", "type", "tool_call_id"})
CALLS = frozenset({"tool_calls", "function_call"})

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ID = re.compile(r"[A-Za-z0-9_.:-]{0,128}")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation: a text, or texts and images in their order."""

    role: Role
    content: Content


Message = ChatMessage | Mapping[str, object]
"""A turn; as a map it may have whatever else the template knows (`tool_calls`, `name`)."""


class Turns:
    """Makes turns of messages. `needed` are markers that a template must not lose, and whose."""

    def __init__(self, markers: Markers, max_image_bytes: int) -> None:
        self.needed: list[tuple[str, str]] = []
        self._markers = markers
        self._max_image_bytes = max_image_bytes

    def turn(self, message: Message, number: int) -> dict[str, object]:
        """Return a message, the `number`-th, as the template sees it.

        Raises:
            ChatError: there is something in it that is neither text, number, list nor map, or a
                content that is neither text nor image.
            CannotRead, CannotSend: the file of an image cannot be read, or is too large.
        """
        if isinstance(message, ChatMessage):
            message = {"role": message.role, "content": message.content}
        if not isinstance(message, Mapping):
            raise ChatError(f"message {number} is no map")
        role, content = message.get("role"), message.get("content")
        if role not in get_args(Role):  # it goes into the text as it is
            raise ChatError(f"role {role!r} is none of {', '.join(get_args(Role))}")
        words = ""
        for part in parts_of(content, number, self._max_image_bytes):
            word = self._markers.mark(part)
            what = "an image of " if isinstance(part, MediaPart) else ""
            self.needed.append((word, f"{what}message {number} ({role})"))
            words += word
        # Templates ask whether there is any.
        turn: dict[str, object] = {"role": role, "content": None if content is None else words}
        rest = {name: value for name, value in message.items() if name not in turn}
        try:
            return {**turn, **self._map(rest, (), f"message {number}")}
        except RecursionError as err:
            raise ChatError(f"message {number} is nested too deeply") from err

    def _map(self, values: Mapping[str, object], path: Path, place: str) -> dict[str, object]:
        marked: dict[str, object] = {}
        for name, value in values.items():
            if path in NAMED and not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise ChatError(f"{place} has a field {name!r}, whose name is no identifier")
            key = name if path in NAMED else self._key(name, path, place)
            within = f"{place}.{name}"
            if name in IDS and path in WITH_IDS and isinstance(value, str):
                # Templates lose ids as they like.
                is_harmless = _ID.fullmatch(value)
                marked[key] = value if is_harmless else self._markers.mark(TextPart(value))
            else:
                marked[key] = self._value(value, (*path, str(name)), within)
        return marked

    def _key(self, name: object, path: Path, place: str) -> str:
        if not isinstance(name, str):  # as in JSON
            raise ChatError(f"{place} has a name {name!r} that is no text")
        return self._text(name, path, place)

    def _value(self, value: object, path: Path, place: str) -> object:
        match value:
            case None | bool():
                return value
            case int():
                return int(value)
            case float():
                return float(value)
            case str():
                return self._text(value, path, place)
            case Mapping():
                return self._map(value, path, place)
            case list() | tuple():
                return [
                    self._value(each, path, f"{place}[{index}]") for index, each in enumerate(value)
                ]
            case _:
                raise ChatError(f"{place} is a {type(value).__name__}, which no message holds")

    def _text(self, text: str, path: Path, place: str) -> str:
        if not text:
            return text
        marker = self._markers.mark(TextPart(text))
        if path[0] in CALLS:
            self.needed.append((marker, place))
        return marker
