"""What a prompt may be made of on the client's side, and the way from there to the wire's parts."""

import os
from collections.abc import Sequence

from anyio import to_thread

from runnerd.streams import CannotRead, CannotSend
from runnerd_protocol.messages import MediaPart, Part, Prompt, TextPart, TokensPart

PromptPart = str | bytes | os.PathLike[str] | Part
"""A plain text, the content of an image file, the path of one, or a part of the wire's."""


async def prompt_of(
    prompt: Prompt | None, parts: Sequence[PromptPart] | None, max_bytes: int
) -> Prompt:
    """Return the prompt that was given as such or in parts; files are read in a thread.

    Raises:
        TypeError: both were given, or neither, or something that is no part.
        CannotRead: an image file cannot be read.
        CannotSend: it has more than `max_bytes`.
    """
    if prompt is not None and parts is None:
        return prompt
    if parts is None or prompt is not None:
        raise TypeError("give either a prompt or parts")
    if isinstance(parts, str | bytes):
        raise TypeError("parts are a list: a text or an image of its own goes into one")
    if any(isinstance(part, os.PathLike) for part in parts):
        return await to_thread.run_sync(_wire_parts, parts, max_bytes, abandon_on_cancel=True)
    return _wire_parts(parts, max_bytes)


def _wire_parts(parts: Sequence[PromptPart], max_bytes: int) -> list[Part]:
    return [_wire_part(part, f"parts[{index}]", max_bytes) for index, part in enumerate(parts)]


def _wire_part(part: PromptPart, place: str, max_bytes: int) -> Part:
    match part:
        case str():
            return TextPart(part)
        case bytes():
            return MediaPart(part)
        case TextPart() | TokensPart() | MediaPart():
            return part
        case os.PathLike():
            return MediaPart(read_image(part, max_bytes))
        case _:
            raise TypeError(
                f"{place} is a {type(part).__name__}: it may be a text, an image's bytes or path,"
                " or a part of the protocol"
            )


def read_image(path: os.PathLike[str], max_bytes: int) -> bytes:
    """Return what is in a file.

    Raises:
        CannotRead: it cannot be read; the message names it and the cause.
        CannotSend: it has more than `max_bytes`.
    """
    name = os.fsdecode(path)
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)  # a device need not have an end
            n_bytes = os.fstat(file.fileno()).st_size
    except OSError as err:
        raise CannotRead(f"cannot read {name}: {err.strerror or err}") from err
    except ValueError as err:  # a name with a zero in it
        raise CannotRead(f"cannot read {name!r}: {err}") from err
    if len(data) > max_bytes:
        size = n_bytes or f"more than {max_bytes}"
        raise CannotSend(f"{name} has {size} bytes, a frame holds {max_bytes}")
    return data
