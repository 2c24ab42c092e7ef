import pytest

from runnerd_protocol.connection import ClientConnection, ServerConnection
from runnerd_protocol.errors import (
    LocalProtocolError,
    MessageTooLarge,
)
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    Choice,
    Delta,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Hello,
    Media,
    MediaPart,
    MediaWanted,
    MemoryReport,
    Plan,
    ProtocolError,
    Status,
    Subscribe,
    Tokenize,
    Tokens,
    Welcome,
)
from tests.protocol.builders import (
    GENERATE,
    HELLO_FRAME,
    SMALL_MEMORY,
    STATUS_FRAME,
    answer_to,
    message_in,
    open_pair,
    open_server,
    raw_frame,
)


def test_hello_and_welcome_open_a_connection() -> None:
    client, server = ClientConnection(), ServerConnection()
    assert (client.state, server.state) == ("awaiting_hello", "awaiting_hello")
    assert server.receive(client.hello("demo")) == [Hello(1, 1, "demo")]
    assert client.state == "awaiting_welcome"
    assert client.receive(server.welcome("runnerd")) == [Welcome(1, 16777216, "runnerd")]
    assert (client.state, server.state) == ("open", "open")
    assert (client.version, server.version) == (1, 1)


def test_the_highest_common_version_is_spoken() -> None:
    server = ServerConnection()
    server.receive(raw_frame({"type": "hello", "min_version": 1, "max_version": 9}))
    assert server.version == 1


@pytest.mark.parametrize("versions", [(2, 3), (2, 1)])
def test_without_a_common_version_both_ranges_are_told(versions: tuple[int, int]) -> None:
    server = ServerConnection()
    low, high = versions
    fields = {"type": "hello", "min_version": low, "max_version": high}
    reply = answer_to(server, raw_frame(fields) + STATUS_FRAME)
    assert reply.code == "unsupported_version"
    assert reply.details == {
        "client_min": low,
        "client_max": high,
        "daemon_min": 1,
        "daemon_max": 1,
    }
    assert server.state == "closed"
    with pytest.raises(LocalProtocolError):
        server.welcome()


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (STATUS_FRAME, "bad_message"),
        (raw_frame([]), "bad_message"),
        (raw_frame({"type": "later", "request_id": 1}), "bad_message"),
        (raw_frame({"type": "hello", "min_version": 0, "max_version": 1}), "invalid_request"),
    ],
)
def test_anything_but_a_good_hello_first_is_fatal(first: bytes, code: str) -> None:
    server = ServerConnection()
    reply = answer_to(server, first + HELLO_FRAME)
    assert isinstance(reply, ProtocolError)
    assert (reply.code, reply.fatal) == (code, True)
    assert server.receive(HELLO_FRAME) == []


def test_requests_may_follow_hello_at_once_and_are_answered_after_welcome() -> None:
    client, server = ClientConnection(), ServerConnection()
    assert len(server.receive(client.hello() + client.send(Tokenize(1, "hi")))) == 2
    with pytest.raises(LocalProtocolError):
        server.send(Tokens(1, [2]))
    answers = server.welcome() + server.send(Tokens(1, [2]))
    assert client.receive(answers)[1:] == [Tokens(1, [2])]


def test_a_second_hello_is_refused_and_the_connection_goes_on() -> None:
    server = open_server()
    reply = answer_to(server, HELLO_FRAME)
    assert isinstance(reply, ProtocolError)
    assert (reply.code, reply.fatal) == ("bad_message", False)
    assert message_in(server, STATUS_FRAME) == GetStatus(77)


def test_a_request_is_active_until_its_last_answer() -> None:
    client, server = open_pair()
    server.receive(client.send(Generate(1, "hi")))
    for answer in (Accepted(1), Delta(1, "é"), Delta(1, "llo")):
        client.receive(server.send(answer))
        assert client.active == server.active == (1,)
    client.receive(server.send(Finished(1, "stop", n_text_bytes=5)))
    assert client.active == server.active == ()


def test_the_text_of_all_completions_counts_towards_the_whole() -> None:
    client, server = open_pair()
    server.receive(client.send(Generate(1, "hi", n=2)))
    client.receive(server.send(Accepted(1)))
    for index, text in enumerate(("é", "abc")):
        client.receive(server.send(Delta(1, text, index=index)))
    choices = [Choice("stop", n_text_bytes=2), Choice("length", n_text_bytes=3)]
    client.receive(server.send(Finished(1, "stop", n_text_bytes=5, choices=choices)))
    assert client.active == server.active == ()


def test_a_used_id_is_refused_and_its_first_request_goes_on() -> None:
    client, server = open_pair()
    server.receive(client.send(Generate(1, "hi")))
    client.receive(server.send(Accepted(1)))
    reply = answer_to(server, encode_frame(Tokenize(1, "no")))
    assert reply == Failed(1, "duplicate_id", "request 1 is still active")
    assert client.receive(server.send(reply)) == [reply]
    assert client.active == server.active == (1,)
    client.receive(server.send(Delta(1, "x")) + server.send(Finished(1, "stop", n_text_bytes=1)))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"type": "later", "request_id": 1}, "bad_message"),
        ({**GENERATE, "top_k": -1}, "invalid_request"),
    ],
)
def test_a_bad_message_with_an_active_id_does_not_touch_its_request(
    fields: dict[str, object], code: str
) -> None:
    server = open_server()
    server.receive(encode_frame(Generate(1, "hi")))
    reply = answer_to(server, raw_frame(fields))
    assert isinstance(reply, ProtocolError)
    assert (reply.code, reply.fatal, reply.details["request_id"]) == (code, False, 1)
    assert server.active == (1,)


def test_a_bad_message_takes_its_free_id_until_it_is_answered() -> None:
    server = open_server()
    reply = answer_to(server, raw_frame({"type": "later", "request_id": 1}))
    assert reply == Failed(1, "bad_message", "'later' is an unknown message")
    assert 1 in server.active
    assert server.receive(encode_frame(Cancel(1))) == []
    server.send(reply)
    assert not server.active


def test_a_message_of_the_daemon_is_refused_by_the_daemon() -> None:
    reply = answer_to(open_server(), encode_frame(Finished(5, "stop")))
    assert reply == Failed(5, "bad_message", "'finished' is a message of the daemon")


def test_a_cancel_is_told_for_active_ids_only() -> None:
    server = open_server()
    server.receive(encode_frame(Subscribe(1)))
    assert server.receive(encode_frame(Cancel(2))) == []
    assert server.receive(encode_frame(Cancel(1))) == [Cancel(1)]
    server.send(Status(1, "ready", last=True))
    assert server.receive(encode_frame(Cancel(1))) == []


def test_a_status_request_ends_by_a_status_marked_last() -> None:
    server = open_server()
    server.receive(STATUS_FRAME)
    with pytest.raises(LocalProtocolError):
        server.send(Status(77, "ready"))
    server.send(Status(77, "ready", last=True))
    assert server.active == ()


def test_a_plan_is_answered_once_and_a_cancel_leaves_it_active_until_then() -> None:
    client, server = open_pair()
    plans = server.receive(client.send(Plan(1, n_ctx=64)) + client.send(Plan(2)))
    assert plans == [Plan(1, n_ctx=64), Plan(2)]
    assert server.receive(client.send(Cancel(2))) == [Cancel(2)]
    assert client.active == server.active == (1, 2)
    report, failed = MemoryReport(1, SMALL_MEMORY), Failed(2, "cancelled", "it is not wanted")
    assert client.receive(server.send(report) + server.send(failed)) == [report, failed]
    assert not client.active
    assert not server.active
    with pytest.raises(LocalProtocolError):
        server.send(report)


def test_a_frame_above_the_limit_ends_the_connection_after_what_came_before() -> None:
    server = open_server(max_frame_bytes=1000)
    events = server.receive(STATUS_FRAME + b"\x00\x00\x03\xe9" + STATUS_FRAME)
    assert events[0] == GetStatus(77)
    assert server.state == "closed"
    assert server.receive(STATUS_FRAME) == []


def test_an_answer_that_fits_no_frame_leaves_its_request_to_be_failed() -> None:
    server = open_server(max_frame_bytes=200)
    server.receive(encode_frame(Tokenize(1, "x")))
    with pytest.raises(MessageTooLarge):
        server.send(Tokens(1, [1] * 300))
    assert server.active == (1,)
    server.send(Failed(1, "answer_too_large", "300 tokens"))


def test_a_client_keeps_to_the_limit_that_the_welcome_tells() -> None:
    client, _ = open_pair(max_frame_bytes=200)
    with pytest.raises(MessageTooLarge):
        client.send(Generate(1, "x" * 200))
    assert client.active == ()


def test_the_end_of_the_stream_leaves_requests_to_be_answered() -> None:
    server = open_server()
    server.receive(encode_frame(Tokenize(1, "x")))
    assert server.receive_eof() is None
    assert server.state == "closed"
    server.send(Tokens(1, []))


def test_the_end_of_the_stream_amid_a_frame_is_fatal() -> None:
    server = open_server()
    server.receive(STATUS_FRAME[:-1])
    assert server.is_mid_frame
    rejection = server.receive_eof()
    assert rejection is not None
    assert rejection.reply.code == "frame_incomplete"


def test_nothing_is_sent_after_a_fatal_error() -> None:
    client, server = open_pair()
    server.receive(client.send(Generate(1, "hi")))
    error = ProtocolError("frame_timeout", "too slow")
    assert client.receive(server.send(error)) == [error]
    with pytest.raises(LocalProtocolError):
        server.send(Accepted(1))
    with pytest.raises(LocalProtocolError):
        client.send(Cancel(1))
    assert client.receive(b"anything") == []
    assert server.receive(STATUS_FRAME) == []


def test_no_text_of_a_request_that_was_accepted_follows_a_fatal_error() -> None:
    client, server = open_pair()
    server.receive(client.send(Generate(1, "hi")))
    client.receive(server.send(Accepted(1)) + server.send(ProtocolError("internal", "a bug")))
    with pytest.raises(LocalProtocolError, match="delta is not legal"):
        server.send(Delta(1, "a"))


def test_nothing_is_read_after_a_fatal_error_of_the_client() -> None:
    client, server = open_pair()
    error = ProtocolError("internal", "gave up")
    assert server.receive(client.send(error) + STATUS_FRAME) == [error]
    assert server.state == "closed"


def test_a_file_that_was_asked_for_reaches_the_daemon() -> None:
    client, server = open_pair()
    server.receive(client.send(Generate(1, [MediaPart(sha256=bytes(32))])))
    client.receive(server.send(Accepted(1)) + server.send(MediaWanted(1, [bytes(32)])))
    assert server.receive(client.send(Media(1, b"x"))) == [Media(1, b"x")]
    assert client.active == server.active == (1,)


def test_files_are_not_asked_for_before_the_request_is_accepted() -> None:
    client, server = open_pair()
    server.receive(client.send(Generate(1, "hi")))
    with pytest.raises(LocalProtocolError, match="media_wanted for request 1, which is asked"):
        server.send(MediaWanted(1, [bytes(32)]))


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_file_for_nothing_is_left_out_and_the_connection_goes_on(is_accepted: bool) -> None:
    client, server = open_pair()
    server.receive(client.send(Tokenize(1, "hi")) + client.send(Generate(2, "hi")))
    if is_accepted:
        client.receive(server.send(Accepted(2)) + server.send(Finished(2, "stop")))
    files = [client.send(Media(request_id, b"x")) for request_id in (1, 2, 3)]
    assert server.receive(b"".join(files)) == []
    assert message_in(server, STATUS_FRAME) == GetStatus(77)
