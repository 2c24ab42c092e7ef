"""Protocol errors as exceptions, and the error codes as data.

Who broke the protocol decides the class: `RemoteProtocolError` the peer, `LocalProtocolError`
ourselves. A code says who must act: the code tables are the ones of the specification.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from runnerd_protocol.messages import DaemonMessage

Details = dict[str, int | float | str | None]


class RemoteProtocolError(Exception):
    """The peer broke the protocol: the connection is of no more use.

    `messages` are the good ones that a client was told in the same bytes before that.
    """

    messages: Sequence[DaemonMessage] = ()


class FrameTooLarge(RemoteProtocolError):
    """A frame's length is above the limit. `payloads` holds the frames that came before it."""

    def __init__(self, declared: int, limit: int, payloads: list[bytes]) -> None:
        super().__init__(f"frame of {declared} bytes, at most {limit} are allowed")
        self.declared = declared
        self.limit = limit
        self.payloads = payloads


class IncompleteStream(RemoteProtocolError):
    """The daemon closed amid a frame, before its welcome, or owing answers to `active`."""

    def __init__(self, message: str, active: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.active = active


class LocalProtocolError(Exception):
    """We were about to break the protocol: nothing was sent, and nothing has changed."""


class MessageTooLarge(LocalProtocolError):
    """A message does not fit into a frame: nothing was sent, and nothing has changed."""


FailedCode = Literal[
    "invalid_request",
    "bad_message",
    "duplicate_id",
    "prompt_too_long",
    "bad_grammar",
    "invalid_media",
    "unsupported",
    "answer_too_large",
    "overloaded",
    "queue_timeout",
    "cancelled",
    "shutting_down",
    "load_failed",
    "engine_failed",
    "internal",
]
ProtocolErrorCode = Literal[
    "bad_message",
    "invalid_request",
    "unsupported_version",
    "frame_too_large",
    "frame_incomplete",
    "frame_timeout",
    "handshake_timeout",
    "too_many_connections",
    "not_allowed",
    "internal",
]


@dataclass(frozen=True, slots=True)
class CodeMeaning:
    """What a code means, who must act on it, and whether the same again may succeed."""

    who: Literal["client", "operator", "nobody"]
    retryable: bool
    meaning: str


FAILED_CODES: dict[FailedCode, CodeMeaning] = {
    "invalid_request": CodeMeaning("client", False, "a field is missing, mistyped or out of range"),
    "bad_message": CodeMeaning("client", False, "the frame holds no message that we can read"),
    "duplicate_id": CodeMeaning("client", False, "the id is in use; its first request goes on"),
    "prompt_too_long": CodeMeaning("client", False, "the prompt leaves no room in the context"),
    "bad_grammar": CodeMeaning("client", False, "the grammar or schema cannot be compiled"),
    "invalid_media": CodeMeaning(
        "client", False, "an image cannot be read, is beyond the limits, or was not sent"
    ),
    "unsupported": CodeMeaning("client", False, "the model that is loaded cannot do this"),
    "answer_too_large": CodeMeaning("client", False, "the answer does not fit into one frame"),
    "overloaded": CodeMeaning(
        "client",
        True,
        "the queue or the store of images is full, or the connection asks for too much",
    ),
    "queue_timeout": CodeMeaning("client", True, "it was not begun in the time that it could wait"),
    "cancelled": CodeMeaning("client", False, "it was no longer wanted"),
    "shutting_down": CodeMeaning("client", True, "the daemon is draining"),
    "load_failed": CodeMeaning("operator", False, "the model could not be loaded"),
    "engine_failed": CodeMeaning("operator", False, "the engine could not complete the request"),
    "internal": CodeMeaning("operator", False, "a bug of the daemon, or no memory was left for it"),
}

PROTOCOL_ERROR_CODES: dict[ProtocolErrorCode, CodeMeaning] = {
    "bad_message": CodeMeaning("client", False, "not a message, or not a legal one at this point"),
    "invalid_request": CodeMeaning("client", False, "a bad field, and no free id to fail"),
    "unsupported_version": CodeMeaning("client", False, "no version that both ends speak"),
    "frame_too_large": CodeMeaning("client", False, "a frame's length is above the limit"),
    "frame_incomplete": CodeMeaning("client", False, "the stream ended amid a frame"),
    "frame_timeout": CodeMeaning("client", False, "a frame was begun and not completed in time"),
    "handshake_timeout": CodeMeaning("client", False, "no hello in time"),
    "too_many_connections": CodeMeaning("client", True, "the daemon takes no more connections"),
    "not_allowed": CodeMeaning("operator", False, "this user may not connect"),
    "internal": CodeMeaning("operator", False, "a bug of the daemon, or no memory was left for it"),
}
