"""Turning clients away: what they are told, and what the log says of it."""

import re
import socket
from collections.abc import Iterable, Mapping

import pytest
from msgspec.msgpack import Decoder
from structlog.testing import capture_logs

from runnerd.peers import OVERFLOW_ID, Ids, Peer
from runnerd.refusals import N_OFFENDERS, TELL_AGAIN_S, Refusals
from runnerd_protocol.framing import FrameDecoder
from runnerd_protocol.messages import DaemonMessage, ProtocolError

decode = Decoder(DaemonMessage).decode
IDS = Ids(5, OVERFLOW_ID, OVERFLOW_ID)


def turn_away(
    refusals: Refusals, uid: int, now: float, *, gid: int | None = None, has_left: bool = False
) -> bytes:
    """Return what a client of that user gets to read, up to the close."""
    ours, theirs = socket.socketpair()
    with theirs:
        if has_left:
            theirs.close()
        refusals.not_allowed(ours, Peer(1, uid, frozenset()), gid, now)
        assert ours.fileno() < 0
        return b"" if has_left else theirs.recv(4096)


def told(lines: Iterable[Mapping[str, object]]) -> list[tuple[object, object]]:
    return [
        (line["uid"], line.get("n_more", 0))
        for line in lines
        if line["event"] == "client.not_allowed"
    ]


def test_the_reason_is_there_to_read_though_nobody_asked_and_it_is_closed() -> None:
    (payload,) = FrameDecoder().feed(turn_away(Refusals(IDS), 7, 0.0))
    reply = decode(payload)
    assert isinstance(reply, ProtocolError)
    assert (reply.code, reply.fatal, reply.details) == (
        "not_allowed",
        True,
        {"uid": 7, "gid": None},
    )


def test_who_has_left_already_is_counted_all_the_same() -> None:
    with capture_logs() as lines:
        turn_away(Refusals(IDS), 7, 0.0, has_left=True)
    assert told(lines) == [(7, 0)]


def test_of_a_flood_there_is_a_line_at_its_start_and_one_a_minute() -> None:
    refusals = Refusals(IDS)
    with capture_logs() as lines:
        for i in range(1000):
            turn_away(refusals, 7, i * TELL_AGAIN_S * 2.5 / 1000)
        refusals.sum_up()
    assert told(lines) == [(7, 0), (7, 399), (7, 399), (7, 199)]


def test_thousands_of_offenders_are_told_of_together() -> None:
    refusals = Refusals(IDS)
    with capture_logs() as lines:
        for uid in range(3000):
            turn_away(refusals, uid, 1.0)
        refusals.sum_up()
    assert len(told(lines)) == N_OFFENDERS + 2
    assert told(lines)[-1] == (None, 3000 - N_OFFENDERS - 1)


def test_the_old_make_room_for_the_new_and_their_counts_are_not_lost() -> None:
    refusals = Refusals(IDS)
    with capture_logs() as lines:
        for uid in range(N_OFFENDERS):
            turn_away(refusals, uid, 0.0)
            turn_away(refusals, uid, 0.0)
        turn_away(refusals, 10_000, TELL_AGAIN_S)
    assert told(lines)[N_OFFENDERS:] == [*((uid, 1) for uid in range(N_OFFENDERS)), (10_000, 0)]


def test_a_summary_tells_only_what_was_not_told() -> None:
    refusals = Refusals(IDS)
    with capture_logs() as lines:
        turn_away(refusals, 7, 0.0)
        refusals.sum_up()
        refusals.sum_up()
    assert told(lines) == [(7, 0)]


@pytest.mark.parametrize(
    ("uid", "gid", "message"),
    [
        (7, None, "user 7 {}: come as root {} or be named in its allow-users or allow-groups"),
        (7, 9, "user 7 {}: come as root {}, join the socket's group 9 or be named in its {}"),
        (OVERFLOW_ID, 9, "user 65534 {}, who is somebody {}: come as root {} or join the {} 9"),
        (OVERFLOW_ID, OVERFLOW_ID, "user 65534 {}, who is somebody {}: come as root {} own user"),
    ],
)
def test_whoever_is_turned_away_hears_what_would_help(
    uid: int, gid: int | None, message: str
) -> None:
    (payload,) = FrameDecoder().feed(turn_away(Refusals(IDS), uid, 0.0, gid=gid))
    reply = decode(payload)
    assert isinstance(reply, ProtocolError)
    assert re.fullmatch(message.replace("{}", ".*"), reply.message), reply.message
