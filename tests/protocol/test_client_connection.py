import pytest

from runnerd_protocol.connection import ClientConnection
from runnerd_protocol.errors import (
    FrameTooLarge,
    IncompleteStream,
    LocalProtocolError,
    RemoteProtocolError,
)
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Accepted,
    Delta,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Status,
    Text,
    Tokenize,
    Welcome,
)
from tests.protocol.builders import (
    open_pair,
    raw_frame,
)


def test_lost_text_is_noticed() -> None:
    client, server = open_pair()
    server.receive(client.send(Generate(1, "hi")))
    client.receive(server.send(Accepted(1)) + server.send(Delta(1, "é")))
    server.send(Delta(1, "lost"))
    with pytest.raises(RemoteProtocolError, match="has 6 bytes of text, 2 came"):
        client.receive(server.send(Finished(1, "stop", n_text_bytes=6)))


@pytest.mark.parametrize(
    "data",
    [
        raw_frame([]),
        raw_frame({"type": "delta", "request_id": 1}),
        raw_frame({"type": "generate", "request_id": 1, "prompt": ""}),
        raw_frame({"type": 5}),
        encode_frame(Text(1, "never asked")),
        encode_frame(Welcome(1, 100)),
        b"\x00\x00\x00\x00",
    ],
)
def test_a_client_takes_nothing_malformed_or_unasked(data: bytes) -> None:
    client, _ = open_pair()
    with pytest.raises(RemoteProtocolError):
        client.receive(data)


def test_a_client_refuses_a_version_that_it_does_not_speak() -> None:
    client = ClientConnection()
    client.hello()
    with pytest.raises(RemoteProtocolError, match="chose version 2"):
        client.receive(encode_frame(Welcome(2, 100)))


def test_a_client_refuses_a_frame_above_its_limit() -> None:
    with pytest.raises(FrameTooLarge):
        ClientConnection(max_frame_bytes=10).receive(b"\x00\x00\x00\x0b")


def test_a_client_ignores_messages_of_a_newer_daemon() -> None:
    client, server = open_pair()
    server.receive(client.send(GetStatus(1)))
    status = Status(1, "ready", last=True)
    newer = raw_frame({"type": "weather", "request_id": 1, "wind": [1]})
    assert client.receive(newer + server.send(status)) == [status]


@pytest.mark.parametrize("breach", [b"\0\0\0\0", b"\xff\xff\xff\xff", encode_frame(Text(9, "x"))])
def test_what_came_before_a_breach_of_the_daemon_is_told(breach: bytes) -> None:
    client, server = open_pair()
    server.receive(client.send(GetStatus(1)))
    status = Status(1, "ready", last=True)
    with pytest.raises(RemoteProtocolError) as caught:
        client.receive(server.send(status) + breach)
    assert caught.value.messages == [status]


def test_a_client_tells_which_requests_are_active() -> None:
    client, server = open_pair()
    server.receive(client.send(GetStatus(1)))
    assert client.is_active(1)
    client.receive(server.send(Status(1, "ready", last=True)))
    assert not client.is_active(1)


@pytest.mark.parametrize("request_id", [-1, 2**63, True])
def test_a_client_sends_no_request_id_that_the_daemon_cannot_answer(request_id: int) -> None:
    client, _ = open_pair()
    with pytest.raises(LocalProtocolError, match="request id"):
        client.send(GetStatus(request_id))


def test_a_client_sends_no_used_id() -> None:
    client, _ = open_pair()
    client.send(GetStatus(1))
    with pytest.raises(LocalProtocolError, match="still active"):
        client.send(Tokenize(1, "x"))


def test_a_stream_that_ends_with_requests_open_is_incomplete() -> None:
    client, _ = open_pair()
    client.send(GetStatus(1))
    with pytest.raises(IncompleteStream) as caught:
        client.receive_eof()
    assert caught.value.active == (1,)


def test_a_stream_that_ends_amid_a_frame_is_incomplete() -> None:
    client, _ = open_pair()
    client.receive(b"\x00")
    with pytest.raises(IncompleteStream, match="amid a frame"):
        client.receive_eof()


def test_a_stream_that_ends_before_its_welcome_is_incomplete() -> None:
    client = ClientConnection()
    client.hello()
    with pytest.raises(IncompleteStream, match="before its welcome"):
        client.receive_eof()


def test_a_stream_that_ends_with_all_answered_is_complete() -> None:
    client, server = open_pair()
    server.receive(client.send(GetStatus(1)))
    client.receive(server.send(Failed(1, "internal", "")))
    client.receive_eof()
    assert client.active == ()
