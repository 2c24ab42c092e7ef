"""The oracle of the live target sees what it is there to see."""

import pytest

from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Accepted,
    DaemonMessage,
    Delta,
    Failed,
    Finished,
    Generate,
    Hello,
    ProtocolError,
    Status,
    Tokenize,
    Tokens,
    Welcome,
)
from tests.fuzz.oracle import Oracle

WELCOME = Welcome(1, 2**17)
FINISHED = Finished(1, "stop")


def oracle_after(*sent: bytes) -> Oracle:
    oracle = Oracle(2**17)
    for data in (encode_frame(Hello(1, 1)), *sent):
        oracle.sent(data)
    return oracle


def test_all_is_settled_once_each_request_has_ended() -> None:
    oracle = oracle_after(encode_frame(Generate(1, "x")), encode_frame(Tokenize(2, "x")))
    said: list[DaemonMessage] = [
        WELCOME,
        Accepted(1),
        Delta(1, "é"),
        Tokens(2, []),
        Finished(1, "stop", n_text_bytes=2),
    ]
    for message in said:
        assert not oracle.is_settled
        oracle.heard(message)
    assert oracle.is_settled


@pytest.mark.parametrize(
    "said",
    [
        [Accepted(1)],
        [WELCOME, WELCOME],
        [WELCOME, Delta(1, "x")],
        [WELCOME, FINISHED],
        [WELCOME, Accepted(1), Accepted(1)],
        [WELCOME, Accepted(1), Delta(1, "x"), FINISHED],
        [WELCOME, Accepted(1), FINISHED, FINISHED],
        [WELCOME, Accepted(1), FINISHED, Failed(1, "cancelled", "")],
        [WELCOME, Accepted(1), Tokens(1, [])],
        [WELCOME, Failed(2, "invalid_request", "")],
        [WELCOME, Failed(1, "no such code", "")],
        [WELCOME, Status(7, "ready", last=True)],
        [WELCOME, ProtocolError("bad_message", "", fatal=True)],
        [WELCOME, ProtocolError("bad_message", "", fatal=False)],
    ],
)
def test_what_is_not_legal_is_seen(said: list[DaemonMessage]) -> None:
    oracle = oracle_after(encode_frame(Generate(1, "x")))
    for message in said[:-1]:
        oracle.heard(message)
    with pytest.raises(AssertionError):
        oracle.heard(said[-1])


def test_an_id_that_is_used_twice_is_owed_two_ends() -> None:
    oracle = oracle_after(encode_frame(Generate(1, "x")), encode_frame(Generate(1, "y")))
    for message in (WELCOME, Accepted(1), Failed(1, "duplicate_id", ""), FINISHED):
        assert not oracle.is_settled
        oracle.heard(message)
    assert oracle.is_settled


def test_a_broken_message_is_owed_an_answer_and_a_frame_that_is_too_large_the_last_word() -> None:
    oracle = oracle_after(b"\x00\x00\x00\x01\xc1")
    oracle.heard(WELCOME)
    assert not oracle.is_settled
    oracle.heard(ProtocolError("bad_message", "", fatal=False))
    assert oracle.is_settled
    oracle.sent(b"\xff\xff\xff\xff")
    assert oracle.is_fatal
    oracle.heard(ProtocolError("frame_too_large", ""))
    assert oracle.has_last_word
    with pytest.raises(AssertionError):
        oracle.heard(Tokens(1, []))
