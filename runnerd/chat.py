"""Chat messages as a prompt, by the model's own template, and safe from what users write.

The template is rendered with unguessable markers in the place of what the messages hold, and
cut at them afterwards. So the template's text, and it alone, may name special tokens: a user
who writes "<|im_end|>" has written ten characters. What a template does to a content (trim it,
look into it) it does to the marker: a content, or the call of a tool, can be lost or changed that
way but not unnoticed.

An image is a part of the prompt in the place of its marker: `["What is this?", Path("cat.png")]`
is a content, and so are the typed parts that others use (`chat_content`).
"""

from collections.abc import Mapping, Sequence

from runnerd.chat_content import ChatError, Content, ContentPart, listed
from runnerd.chat_template import Markers, TemplateFailed, render
from runnerd.chat_turn import ChatMessage, Message, Turns
from runnerd_protocol.framing import DEFAULT_MAX_FRAME_BYTES
from runnerd_protocol.messages import Model, Part, TokensPart

__all__ = [
    "ChatError",
    "ChatMessage",
    "Content",
    "ContentPart",
    "Message",
    "chat_prompt",
    "render_chat",
]


def chat_prompt(
    model: Model,
    messages: Sequence[Message],
    *,
    tools: Sequence[object] | None = None,
    variables: Mapping[str, object] | None = None,
    max_image_bytes: int = DEFAULT_MAX_FRAME_BYTES,
) -> list[Part]:
    """Return the messages as parts of a prompt for a model, as `render_chat` does."""
    return render_chat(
        model.chat_template,
        messages,
        tools=tools,
        variables=variables,
        bos_token=model.bos_token,
        eos_token=model.eos_token,
        max_image_bytes=max_image_bytes,
    )


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[object] | None = None,
    variables: Mapping[str, object] | None = None,
    bos_token: int | None = None,
    eos_token: int | None = None,
    max_image_bytes: int = DEFAULT_MAX_FRAME_BYTES,
) -> list[Part]:
    """Return the messages as parts of a prompt that the assistant is to continue.

    `tools` and `variables` reach the template as they are: they are the application's own. What
    the template writes as JSON is plain text, whatever is in it. Files of images are read.

    Raises:
        ChatError: there is no template, it refuses the messages or writes without end, or it
            loses or changes what they hold.
        CannotRead, CannotSend: the file of an image cannot be read, or is too large.
    """
    if not template.strip():
        raise ChatError("the model has no chat template")
    markers = Markers()
    turns = Turns(markers, max_image_bytes)
    messages_seen = [turns.turn(message, at) for at, message in enumerate(messages, start=1)]
    context: dict[str, object] = {
        "add_generation_prompt": True,
        **(variables or {}),
        "tools": tools or None,
    }
    for name, token in (("bos_token", bos_token), ("eos_token", eos_token)):
        context[name] = "" if token is None else markers.mark(TokensPart([token]))

    def rendered(messages_seen: list[dict[str, object]]) -> list[Part]:
        text = render(template, {**context, "messages": messages_seen}, markers)
        found = markers.found_in(text)
        for marker, whose in turns.needed:
            if marker not in found:
                raise TemplateFailed(f"the chat template drops or changes {whose}")
        return markers.split(text)

    try:
        return rendered(messages_seen)
    except TemplateFailed as err:
        try:
            return rendered([listed(each) for each in messages_seen])
        except TemplateFailed:  # it wants no lists: what it said of texts is what counts
            raise ChatError(str(err)) from err
