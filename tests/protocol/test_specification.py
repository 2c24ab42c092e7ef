import re
import socket
import threading
from collections.abc import Iterator
from typing import get_args

import msgspec
import pytest

from runnerd_protocol.connection import ClientConnection, Rejection, ServerConnection
from runnerd_protocol.errors import FAILED_CODES, PROTOCOL_ERROR_CODES, CodeMeaning
from runnerd_protocol.messages import (
    Accepted,
    Adapter,
    Choice,
    ClientMessage,
    DaemonMessage,
    Delta,
    DeviceMemory,
    FailedAllocation,
    Finished,
    Generate,
    Hello,
    LayerMemory,
    MediaPart,
    Memory,
    Message,
    SlotStatus,
    TextPart,
    Timings,
    TokenLogprobs,
    TokensPart,
    TopLogprob,
    Welcome,
)
from runnerd_protocol.order import FIRST_PHASE, FROM_CLIENT, FROM_DAEMON, PHASES, Event
from tests.protocol.spec import code_block, rows_of, table, tag_of

MESSAGES: tuple[type[Message], ...] = tuple(
    dict.fromkeys((*get_args(ClientMessage), *get_args(DaemonMessage)))
)


@pytest.mark.parametrize("kind", MESSAGES)
def test_the_table_of_a_message_has_the_fields_of_its_struct(kind: type[Message]) -> None:
    assert [row[:4] for row in table(f"`{tag_of(kind)}`")] == rows_of(kind)


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("`text` part", TextPart),
        ("`tokens` part", TokensPart),
        ("`media` part", MediaPart),
        ("`adapter`", Adapter),
        ("`token_logprobs`", TokenLogprobs),
        ("`top_logprob`", TopLogprob),
        ("`choice`", Choice),
        ("`timings`", Timings),
        ("`slot_status`", SlotStatus),
        ("`memory`", Memory),
        ("`layer_memory`", LayerMemory),
        ("`device_memory`", DeviceMemory),
        ("`failed_allocation`", FailedAllocation),
    ],
)
def test_the_table_of_an_inner_map_has_the_fields_of_its_struct(title: str, kind: type) -> None:
    assert [row[:4] for row in table(title)] == rows_of(kind)


def test_every_field_has_a_meaning() -> None:
    assert all(row[4] for kind in MESSAGES for row in table(f"`{tag_of(kind)}`"))


@pytest.mark.parametrize(
    ("title", "codes"),
    [("Codes of `failed`", FAILED_CODES), ("Codes of `protocol_error`", PROTOCOL_ERROR_CODES)],
)
def test_the_tables_of_codes_are_those_of_the_package(
    title: str, codes: dict[str, CodeMeaning]
) -> None:
    assert table(title) == [
        [name, code.who, "yes" if code.retryable else "no", code.meaning]
        for name, code in codes.items()
    ]


def test_the_states_of_a_connection_are_those_of_the_package() -> None:
    found = {
        (direction, state): set(filter(None, legal.split(", ")))
        for direction, state, legal in table("The connection")
    }
    ours = {("client", state): set(map(tag_of, kinds)) for state, kinds in FROM_CLIENT.items()}
    theirs = {("daemon", state): set(map(tag_of, kinds)) for state, kinds in FROM_DAEMON.items()}
    assert found == ours | theirs


def test_the_first_phases_are_those_of_the_package() -> None:
    first: list[list[str]] = [[tag_of(kind), phase] for kind, phase in FIRST_PHASE.items()]
    assert table("Requests") == [*first, ["a bad message that names a free id", "refused"]]


def test_the_phases_of_a_request_are_those_of_the_package() -> None:
    assert table("Phases") == [
        [phase, event_in_words(event), after]
        for phase, events in PHASES.items()
        for event, after in events.items()
    ]


def event_in_words(event: Event) -> str:
    """Return a message's type, and whether it is a last one, as the specification says it."""
    if isinstance(event, str):
        return f"{event.removeprefix('last_')} with last"
    return tag_of(event)


def test_the_session_in_bytes_is_what_both_ends_say() -> None:
    client, server = ClientConnection(), ServerConnection()
    request = Generate(1, "Say hi", max_tokens=8, temperature=0.0)
    said = list(session_in_bytes())
    assert [who for who, _ in said] == ["C", "D", "C", "D", "D", "D", "D"]
    frames = [data for _, data in said]
    assert frames[0] == client.hello("demo")
    assert server.receive(frames[0]) == [Hello(1, 1, "demo")]
    assert frames[1] == server.welcome("runnerd 0.1.0")
    assert client.receive(frames[1]) == [Welcome(1, 16777216, "runnerd 0.1.0")]
    assert frames[2] == client.send(request)
    assert server.receive(frames[2]) == [request]
    answers: list[DaemonMessage] = [
        Accepted(1),
        Delta(1, "Hé"),
        Delta(1, "llo 👋", n_tokens=3),
        Finished(1, "stop", n_prompt=3, n_generated=4, n_text_bytes=11, seed=7),
    ]
    assert frames[3:] == [server.send(answer) for answer in answers]
    assert client.receive(b"".join(frames[3:])) == answers


def session_in_bytes() -> Iterator[tuple[str, bytes]]:
    """Yield who speaks, and a frame."""
    code = re.sub(r" *#.*", "", code_block("A session in bytes"))
    for who, digits in re.findall(r"^([CD])((?:\s+[0-9a-f]{2}\b)+)", code, re.M):
        yield who, bytes.fromhex(digits)


def test_the_small_client_completes_a_prompt() -> None:
    names: dict[str, type] = {}
    exec(code_block("A small client"), names)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        daemon = threading.Thread(target=serve_one, args=(ours,))
        daemon.start()
        assert list(names["Connection"](theirs).complete("hi", max_tokens=3)) == ["hé", "llo"]
        daemon.join()


def serve_one(stream: socket.socket) -> None:
    """Answer one client's hello and generate."""
    server = ServerConnection()
    while True:
        for event in server.receive(stream.recv(7)):
            assert not isinstance(event, Rejection)
            if isinstance(event, Hello):
                stream.sendall(server.welcome())
            else:
                assert event == Generate(1, "hi", max_tokens=3)
                newer = msgspec.msgpack.encode({"type": "weather", "request_id": 1})
                stream.sendall(len(newer).to_bytes(4, "big") + newer)
                stream.sendall(server.send(Accepted(1)) + server.send(Delta(1, "hé")))
                stream.sendall(server.send(Delta(1, "llo")))
                stream.sendall(server.send(Finished(1, "length", n_text_bytes=6)))
                return
