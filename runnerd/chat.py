"""Chat messages as a prompt, by the model's own template, and safe from what users write.

The template is rendered with unguessable markers in the place of the contents, and cut at
them afterwards. So the template's text, and it alone, may name special tokens: a user who
writes "<|im_end|>" has written ten characters. What a template does to a content (trim it,
look into it) it does to the marker; a content can be lost that way but not unnoticed.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runnerd_protocol.messages import TextPart

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: Role
    content: str


class ChatError(Exception):
    """The template cannot render these messages."""


def render_chat(
    template: str,
    messages: Sequence[ChatMessage],
    *,
    bos_token: str = "",
    eos_token: str = "",
) -> list[TextPart]:
    """Return the messages as parts of a prompt that the assistant is to continue.

    Raises:
        ChatError: there is no template, it refuses the messages, or it loses a content.
    """
    if not template.strip():
        raise ChatError("the model has no chat template")
    # Of both cases, so that neither lower() nor upper() leaves a marker whole.
    secret = f"Content{secrets.token_hex(16)}X"
    turns = []
    for number, message in enumerate(messages):
        if message.role not in get_args(Role):  # it goes into the text as it is
            raise ChatError(f"role {message.role!r} is none of {', '.join(get_args(Role))}")
        # An empty content stays one: templates ask whether there is any.
        marker = f"{secret}{number}Y" if message.content else ""
        turns.append({"role": message.role, "content": marker})
    text = _render(template, turns, bos_token, eos_token)
    pieces = re.split(f"{secret}([0-9]+)Y", text)
    seen = {int(number) for number in pieces[1::2]}
    for number, message in enumerate(messages):
        if message.content and number not in seen:
            raise ChatError(
                f"the chat template drops or changes message {number + 1} ({message.role})"
            )
    parts = []
    for index, piece in enumerate(pieces):
        if index % 2:
            parts.append(TextPart(messages[int(piece)].content))
        elif piece:
            parts.append(TextPart(piece, special=True))
    return parts


def _render(template: str, turns: Sequence[dict[str, str]], bos_token: str, eos_token: str) -> str:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        text: str = environment.from_string(template).render(
            messages=turns, add_generation_prompt=True, bos_token=bos_token, eos_token=eos_token
        )
    except Exception as err:  # foreign code: it may raise whatever it likes
        raise ChatError(f"the chat template failed: {err}") from err
    return text


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
