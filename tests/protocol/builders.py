"""Connections in a known state, and payloads that no encoder of ours would make."""

from msgspec import msgpack

from runnerd_protocol.connection import ClientConnection, Rejection, ServerConnection
from runnerd_protocol.framing import DEFAULT_MAX_FRAME_BYTES
from runnerd_protocol.messages import (
    ClientMessage,
    Failed,
    Hello,
    ProtocolError,
)
from tests.some_memory import some_memory

SMALL_MEMORY = some_memory()

GENERATE: dict[str, object] = {"type": "generate", "request_id": 1, "prompt": "hi"}


def frame(payload: bytes) -> bytes:
    """Put a length before a payload."""
    return len(payload).to_bytes(4, "big") + payload


def raw_frame(fields: object) -> bytes:
    """Return any value as a frame, whether it is a message or not."""
    return frame(msgpack.encode(fields))


HELLO_FRAME = raw_frame({"type": "hello", "min_version": 1, "max_version": 1})
STATUS_FRAME = raw_frame({"type": "get_status", "request_id": 77})


def open_pair(
    *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
) -> tuple[ClientConnection, ServerConnection]:
    """Return both ends of a connection after hello and welcome."""
    client, server = ClientConnection(), ServerConnection(max_frame_bytes)
    assert server.receive(client.hello("test")) == [Hello(1, 1, "test")]
    client.receive(server.welcome("runnerd"))
    return client, server


def open_server(*, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> ServerConnection:
    """Return the daemon's end of a connection after hello and welcome."""
    return open_pair(max_frame_bytes=max_frame_bytes)[1]


def answer_to(server: ServerConnection, data: bytes) -> Failed | ProtocolError:
    """Return the one answer that a server has ready for what it is sent."""
    (event,) = server.receive(data)
    assert isinstance(event, Rejection)
    return event.reply


def message_in(server: ServerConnection, data: bytes) -> ClientMessage:
    """Return the one good message that a server finds in what it is sent."""
    (event,) = server.receive(data)
    assert not isinstance(event, Rejection)
    return event
