"""What messages are made of: their base, ids, names, and prompts as parts."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

RequestId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
# More is refused before it is read: a frame of nothing but ids would take a third of a second.
TokenIds = Annotated[list[TokenId], Meta(max_length=2**20)]

FinishReason = Literal["stop", "stop_sequence", "length", "context", "timeout", "cancelled"]
Pooling = Literal["model", "mean", "cls", "last"]
DaemonState = Literal["starting", "loading", "ready", "stalled", "draining", "stopped", "failed"]


class Message(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """What every message is: frozen, tagged by `type`, defaults left out."""


class TextPart(Message, frozen=True, tag="text"):
    """Text; with `special` set, names of special tokens in it become those tokens."""

    text: str
    special: bool = False


class TokensPart(Message, frozen=True, tag="tokens"):
    """Token ids, taken as they are."""

    tokens: TokenIds


MAX_MEDIA = 64  # images in one prompt: more would not fit into a context that is in use today

ContentHash = Annotated[bytes, Meta(min_length=32, max_length=32)]


class MediaPart(Message, frozen=True, tag="media"):
    """An image: a whole PNG, JPEG, WebP, GIF (its first frame counts) or BMP file.

    `sha256` of a file may stand for it: without `data`, the daemon looks among what the connection
    has sent, and asks for it (`MediaWanted`) where it is not there any more. With both they must
    agree. A prompt has at most `MAX_MEDIA` of these.
    """

    data: bytes = b""
    sha256: ContentHash | None = None


Part = TextPart | TokensPart | MediaPart
Prompt = str | Annotated[list[Part], Meta(max_length=4096)]
