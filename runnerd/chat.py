"""Chat messages as a prompt, by the model's own template, and safe from what users write.

The template is rendered with unguessable markers in the place of what the messages hold, and
cut at them afterwards. So the template's text, and it alone, may name special tokens: a user
who writes "<|im_end|>" has written ten characters. What a template does to a content (trim it,
look into it) it does to the marker; a content can be lost that way but not unnoticed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from runnerd.chat_template import Markers, TemplateFailed, render
from runnerd.streams import ClientError
from runnerd_protocol.messages import Model, Part, TextPart, TokensPart

Role = Literal["system", "developer", "user", "assistant", "tool"]
IDENTIFIERS = frozenset({"id", "type", "tool_call_id"})  # what templates compare and count
_IDENTIFIER = re.compile(r"[\w.:-]{0,128}")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation that is nothing but text."""

    role: Role
    content: str


Message = ChatMessage | Mapping[str, object]
"""A turn; as a map it may have whatever else the template knows (`tool_calls`, `name`)."""


class ChatError(ClientError):
    """The template cannot render these messages."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a template is told besides the messages: both are the application's own."""

    tools: Sequence[object] | None = None
    variables: Mapping[str, object] | None = None

    @staticmethod
    def taken_from(options: dict[str, object]) -> "ChatOptions":
        """Take `tools` and `variables` out of a chat's options."""
        tools, variables = options.pop("tools", None), options.pop("variables", None)
        if not isinstance(tools, Sequence | None) or not isinstance(variables, Mapping | None):
            raise TypeError("tools are a list, variables a dict")
        return ChatOptions(tools, variables)


def chat_prompt(
    model: Model,
    messages: Sequence[Message],
    *,
    tools: Sequence[object] | None = None,
    variables: Mapping[str, object] | None = None,
) -> list[Part]:
    """Return the messages as parts of a prompt for a model, as `render_chat` does."""
    return render_chat(
        model.chat_template,
        messages,
        tools=tools,
        variables=variables,
        bos_token=model.bos_token,
        eos_token=model.eos_token,
    )


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[object] | None = None,
    variables: Mapping[str, object] | None = None,
    bos_token: int | None = None,
    eos_token: int | None = None,
) -> list[Part]:
    """Return the messages as parts of a prompt that the assistant is to continue.

    `tools` and `variables` reach the template as they are: they are the application's own. What
    the template writes as JSON is plain text, whatever is in it.

    Raises:
        ChatError: there is no template, it refuses the messages, or it loses a content.
    """
    if not template.strip():
        raise ChatError("the model has no chat template")
    markers = Markers()
    turns: list[dict[str, object]] = []
    contents: list[tuple[str, str]] = []
    for number, message in enumerate(messages, start=1):
        turn = _turn(message, number, markers)
        content = turn["content"]
        if isinstance(content, str) and content:  # templates ask whether there is any
            turn["content"] = marker = markers.mark(TextPart(content))
            contents.append((marker, f"message {number} ({turn['role']})"))
        turns.append(turn)
    context = {"add_generation_prompt": True, **(variables or {}), "messages": turns}
    context["tools"] = tools or None
    for name, token in (("bos_token", bos_token), ("eos_token", eos_token)):
        context[name] = "" if token is None else markers.mark(TokensPart([token]))
    try:
        text = render(template, context, markers)
    except TemplateFailed as err:
        raise ChatError(str(err)) from err
    for marker, whose in contents:
        if not markers.is_in(marker, text):
            raise ChatError(f"the chat template drops or changes {whose}")
    return markers.split(text)


def _turn(message: Message, number: int, markers: Markers) -> dict[str, object]:
    """Return a message as the template sees it, its content still as it is."""
    if isinstance(message, ChatMessage):
        message = {"role": message.role, "content": message.content}
    role, content = message.get("role"), message.get("content")
    if role not in get_args(Role):  # it goes into the text as it is
        raise ChatError(f"role {role!r} is none of {', '.join(get_args(Role))}")
    if not isinstance(content, str | None):
        raise ChatError(f"the content of message {number} is no text")
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    return {"role": role, "content": content, **_marked(rest, markers)}


def _marked(values: Mapping[str, object], markers: Markers) -> dict[str, object]:
    """Return what a message holds besides its content, with markers in the place of texts."""
    marked: dict[str, object] = {}
    for name, value in values.items():
        if name not in IDENTIFIERS:
            marked[name] = _mark(value, markers)
        elif isinstance(value, str) and _IDENTIFIER.fullmatch(value):
            marked[name] = value
        else:
            raise ChatError(f"{name} {value!r} of a message is no identifier")
    return marked


def _mark(value: object, markers: Markers) -> object:
    match value:
        case "":
            return value
        case str():
            return markers.mark(TextPart(value))
        case Mapping():
            return _marked(value, markers)
        case list() | tuple():
            return [_mark(each, markers) for each in value]
        case _:
            return value
