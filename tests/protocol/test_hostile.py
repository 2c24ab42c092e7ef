"""Whatever a peer sends, the daemon's end answers as documented and goes on, or closes."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from runnerd_protocol.connection import Rejection, ServerConnection
from runnerd_protocol.errors import FAILED_CODES, PROTOCOL_ERROR_CODES
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Adapter,
    ClientMessage,
    Detokenize,
    Embed,
    Failed,
    Generate,
    GetStatus,
    Media,
    MediaPart,
    ProtocolError,
    Subscribe,
    TextPart,
    Tokenize,
    TokensPart,
)
from tests.protocol.builders import (
    GENERATE,
    STATUS_FRAME,
    answer_to,
    frame,
    message_in,
    open_server,
    raw_frame,
)

GOOD: list[ClientMessage] = [
    Generate(1, "hello", stop=["a", "b"], temperature=0.5, seed=7),
    Generate(2, [TextPart("x", special=True), TokensPart([1, 300, 70000])], n_keep=-1),
    Generate(2, [MediaPart(b"GIF89a"), MediaPart(sha256=bytes(32))]),
    Media(3, b"GIF89a"),
    Generate(2, "x", logit_bias={7: -1.0}, adapters=[Adapter("tone", 0.5)], n=2),
    Embed(2, ["a", [TokensPart([1])]]),
    Tokenize(3, "é"),
    Detokenize(4, [1, 2, 3]),
    Subscribe(5, 0.5),
]
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)


def events_of(server: ServerConnection, data: bytes) -> list[ClientMessage | Rejection]:
    """Return what a server makes of bytes, after sending what it has to answer."""
    events = server.receive(data)
    for event in events:
        if not isinstance(event, Rejection):
            continue
        reply = event.reply
        if isinstance(reply, Failed):
            assert reply.code in FAILED_CODES
        else:
            assert reply.code in PROTOCOL_ERROR_CODES
            assert reply.fatal == (server.state == "closed")
        server.send(reply)
    return events


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a good payload with some bytes replaced, removed, or cut off at the end."""
    payload = bytearray(encode_frame(draw(st.sampled_from(GOOD)))[4:])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(payload) - 1))
        payload[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
        payload = payload or bytearray(1)
    return (
        bytes(payload[: draw(st.integers(0, len(payload)))])
        if draw(st.booleans())
        else (bytes(payload))
    )


@settings(deadline=None)
@given(payload=mutated() | st.binary(max_size=64))
def test_a_broken_payload_gets_one_answer_and_a_good_one_after_it_is_read(payload: bytes) -> None:
    server = open_server()
    assert len(events_of(server, frame(payload))) <= 1  # none: it is about nothing
    assert message_in(server, encode_frame(GetStatus(2**62))) == GetStatus(2**62)


@settings(deadline=None)
@given(data=st.binary(max_size=64), is_open=st.booleans())
def test_any_bytes_at_all_are_survived(data: bytes, is_open: bool) -> None:
    server = open_server() if is_open else ServerConnection()
    events_of(server, data)
    rejection = server.receive_eof()
    assert rejection is None or server.state == "closed"
    assert server.receive(encode_frame(GetStatus(1))) == []


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from([*Generate.__struct_fields__, "type", "later"]),
    value=ANYTHING,
)
def test_any_value_in_any_field_is_taken_or_refused(name: str, value: object) -> None:
    (event,) = events_of(open_server(), raw_frame({**GENERATE, name: value}))
    if isinstance(event, Rejection) and name != "type":
        assert event.reply.code == "invalid_request"
        assert str(event.reply.details["field"]).split(".")[0].split("[")[0] == name


@settings(deadline=None)
@given(data=st.data(), payloads=st.lists(mutated() | st.just(STATUS_FRAME[4:]), max_size=5))
def test_the_cuts_of_a_stream_do_not_change_its_events(
    data: st.DataObject, payloads: list[bytes]
) -> None:
    stream = b"".join(map(frame, payloads)) + data.draw(st.sampled_from([b"", b"\xff" * 4]))
    whole = open_server().receive(stream)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    server = open_server()
    pieces: list[ClientMessage | Rejection] = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        pieces += server.receive(stream[start:stop])
    assert repr(pieces) == repr(whole)  # NaN in an answer is not equal to itself


@pytest.mark.parametrize("last", [[], ["a"], [["a", "b"]], {"a": 1}, 7])
@pytest.mark.parametrize("first", [["a", ""], [{"type": "text", "text": 3}], [{"type": "x"}]])
@pytest.mark.parametrize("name", ["stop", "prompt"])
def test_two_equal_keys_are_survived(name: str, first: object, last: object) -> None:
    fields = {"type": "generate", "request_id": 1, "prompt" if name == "stop" else "stop": []}
    pairs = b"".join(map(msgpack.encode, [name, first, name, last]))
    server = open_server()
    assert len(events_of(server, frame(b"\x85" + msgpack.encode(fields)[1:] + pairs))) == 1
    assert message_in(server, STATUS_FRAME) == GetStatus(77)


@pytest.mark.parametrize(
    "value",
    [
        msgpack.Ext(5, b"x" * 100),
        msgpack.Ext(-1, b"\xff" * 12),
        msgpack.Ext(-1, b"\xff" * 3),
        {(1, 2): [{}]},
        [{"a": [["b"] * 20] * 20}] * 20,
    ],
)
@pytest.mark.parametrize("name", ["temperature", "prompt", "stop", "request_id", "type"])
def test_strange_values_are_survived(name: str, value: object) -> None:
    server = open_server()
    assert len(events_of(server, raw_frame({**GENERATE, name: value}))) == 1
    assert message_in(server, STATUS_FRAME) == GetStatus(77)


@pytest.mark.parametrize("depth", [900, 1100, 100_000])
@pytest.mark.parametrize("name", ["prompt", "later", "request_id", "type"])
def test_deep_nesting_is_survived(name: str, depth: int) -> None:
    fields = {key: value for key, value in GENERATE.items() if key != name}
    nested = msgpack.encode(name) + b"\x91" * depth + b"\xc0"
    payload = bytes([0x81 + len(fields)]) + msgpack.encode(fields)[1:] + nested
    server = open_server()
    assert len(events_of(server, frame(payload))) == 1
    assert message_in(server, STATUS_FRAME) == GetStatus(77)


def test_a_large_file_with_a_broken_field_costs_little() -> None:
    part = {"type": "media", "data": bytes(2**24 - 200), "sha256": bytes(31)}
    data = raw_frame({**GENERATE, "prompt": [part]})
    server = open_server()
    tracemalloc.start()
    reply = answer_to(server, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply.details["field"] == "prompt[0].sha256"
    assert str(reply.details["value"]).endswith(" bytes)")
    assert peak < 6 * 2**24


@pytest.mark.parametrize("name", ["prompt", "stop", "top_k", "request_id", "type"])
def test_a_million_empty_maps_cost_little(name: str) -> None:
    maps = b"\xdd" + struct.pack(">I", 10**6) + b"\x80" * 10**6
    fields = {key: value for key, value in GENERATE.items() if key != name}
    payload = bytes([0x81 + len(fields)]) + msgpack.encode(fields)[1:] + msgpack.encode(name) + maps
    server = open_server()
    tracemalloc.start()
    reply = answer_to(server, frame(payload))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(reply, ProtocolError if name == "request_id" else Failed)
    assert peak < 6 * len(payload)


@pytest.mark.parametrize("opening", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
def test_a_claimed_size_is_not_believed(opening: bytes) -> None:
    payload = b"\x83" + msgpack.encode({"type": "generate", "request_id": 1})[1:] + b"\xa6prompt"
    server = open_server()
    tracemalloc.start()
    reply = answer_to(server, frame(payload + opening + b"\xff\xff\xff\xff"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply.code == "bad_message"
    assert peak < 100_000


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "bad_message"),
        (b"\xc1", "bad_message"),
        (b"\x80", "bad_message"),
        (b"\x91\x80", "bad_message"),
        (msgpack.encode(GENERATE) + b"\x00", "bad_message"),
        (msgpack.encode({**GENERATE, "prompt": "\x7f"}).replace(b"\x7f", b"\xff"), "bad_message"),
        (b"\x84" + msgpack.encode(GENERATE)[1:] + b"\x01\x01", "bad_message"),
        (msgpack.encode({**GENERATE, "prompt": [{1: 2}]}), "bad_message"),
    ],
)
def test_what_is_no_message_is_a_bad_message(payload: bytes, code: str) -> None:
    server = open_server()
    assert answer_to(server, frame(payload)).code == code
    assert message_in(server, STATUS_FRAME) == GetStatus(77)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("16030100f8010000f40303") + bytes(64),
    ],
)
def test_other_protocols_are_told_to_go(data: bytes) -> None:
    reply = answer_to(ServerConnection(), data)
    assert isinstance(reply, ProtocolError)
    assert reply.fatal
    assert reply.code == "frame_too_large"
    assert reply.details["limit"] == 16777216


def test_an_answer_to_a_long_unknown_type_is_short() -> None:
    reply = answer_to(open_server(), raw_frame({"type": "x" * 10**6, "request_id": 1}))
    assert len(encode_frame(reply)) < 400


@pytest.mark.parametrize("value", [msgpack.Ext(5, b"abc"), [msgpack.Ext(5, b"abc")]])
def test_an_answer_tells_no_address_in_memory(value: object) -> None:
    reply = answer_to(open_server(), raw_frame({**GENERATE, "top_k": value}))
    assert "(ext 5 of 3 bytes)" in str(reply.details["value"])
    assert "0x" not in reply.message
