"""The line that each request leaves in the log, whatever becomes of it."""

from collections.abc import Mapping
from threading import Event

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs
from structlog.typing import EventDict

from runnerd.client import connect
from runnerd.config import SessionLimits
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine
from runnerd.errors import BadModel, Cancelled, Internal, InvalidRequest, Overloaded
from runnerd.request_log import RequestLog
from runnerd_protocol.messages import (
    Accepted,
    Cancel,
    ClientMessage,
    Delta,
    Detokenize,
    Embed,
    Failed,
    Finished,
    Generate,
    GetModel,
    GetStatus,
    Subscribe,
    Tokenize,
)
from tests.daemon import Daemon, raw_client, running_daemon

pytestmark = pytest.mark.anyio

Line = Mapping[str, object]
ENDS = ("request.finished", "request.failed")
TIMES = {"queue_ms", "ttft_ms", "itl_p50_ms", "total_ms"}


def ends_in(lines: list[EventDict]) -> list[Line]:
    return [line for line in lines if line["event"] in ENDS]


def without_times(line: Line) -> dict[str, object]:
    assert all(isinstance(line[name], int | float) for name in TIMES & line.keys())
    return {name: value for name, value in line.items() if name not in TIMES}


async def all_have_left(daemon: Daemon) -> None:
    await daemon.until(lambda: daemon.server.n_connections == 0)


async def test_a_generation_leaves_a_line_with_its_numbers() -> None:
    with capture_logs() as lines:
        async with running_daemon() as daemon, connect(daemon.path) as client:
            await client.complete("abc", max_tokens=5)
    (line,) = ends_in(lines)
    assert line.keys() >= TIMES
    assert without_times(line) == {
        "log_level": "info",
        "event": "request.finished",
        "connection": 1,
        "request_id": 1,
        "kind": "generate",
        "reason": "length",
        "n": 1,
        "n_prompt": 4,
        "n_cached": 0,
        "n_generated": 5,
    }


async def test_several_completions_of_a_request_leave_one_line() -> None:
    with capture_logs() as lines:
        async with running_daemon() as daemon, raw_client(daemon) as client:
            await client.send(Generate(7, "abc", max_tokens=5, n=3))
            await client.receive_a(Finished)
    (line,) = ends_in(lines)
    assert (line["request_id"], line["n"], line["n_generated"]) == (7, 3, 15)
    assert sum(line["event"] == "sequence.finished" for line in lines) == 3


async def test_connections_are_told_apart() -> None:
    with capture_logs() as lines:
        async with running_daemon() as daemon:
            async with raw_client(daemon) as one, raw_client(daemon) as other:
                for client in (one, other, one):
                    await client.send(Generate(1, "abc", max_tokens=1))
                    await client.receive_a(Finished)
    assert [line["connection"] for line in ends_in(lines)] == [1, 2, 1]


async def test_embeddings_leave_a_line_with_their_numbers() -> None:
    with capture_logs() as lines:
        async with running_daemon() as daemon, connect(daemon.path) as client:
            await client.embed(["abc", "de"])
    (line,) = ends_in(lines)
    assert (line["kind"], line["reason"]) == ("embed", "complete")
    assert (line["n_inputs"], line["n_prompt"]) == (2, 7)


async def test_what_is_polled_for_leaves_lines_for_a_debugger_only() -> None:
    asked: list[ClientMessage] = [
        Tokenize(1, "x"),
        Detokenize(2, [65]),
        GetModel(3),
        GetStatus(4),
        Subscribe(5),
    ]
    with capture_logs() as lines:
        async with running_daemon() as daemon:
            async with raw_client(daemon) as client:
                await client.send(*asked)
                await daemon.until(lambda: len(ends_in(lines)) == 4)
            await all_have_left(daemon)
    ends = ends_in(lines)
    assert {line["log_level"] for line in ends} == {"debug"}
    assert sorted(str(line["kind"]) for line in ends) == [
        "detokenize",
        "get_model",
        "get_status",
        "subscribe",
        "tokenize",
    ]


async def test_a_request_that_fails_leaves_a_line_with_the_numbers_of_its_error() -> None:
    with capture_logs() as lines:
        async with running_daemon(n_ctx=64) as daemon, raw_client(daemon) as client:
            await client.send(Generate(1, "x" * 100))
            await client.receive_a(Failed)
    (line,) = ends_in(lines)
    assert (line["event"], line["code"]) == ("request.failed", "prompt_too_long")
    assert (line["n_prompt"], line["n_ctx"]) == (101, 64)
    assert line["log_level"] == "info"


async def test_a_request_that_is_refused_at_once_leaves_a_line() -> None:
    limits = SessionLimits(max_requests=1)
    with capture_logs() as lines:
        async with running_daemon(limits=limits) as daemon, raw_client(daemon) as client:
            await client.send(Generate(1, "x", shift=True), Generate(2, "x"))
            await client.receive_a(Failed, 2)
    line = ends_in(lines)[0]
    assert (line["code"], line["request_id"], line["connection"]) == ("overloaded", 2, 1)
    assert (line["n_requests"], line["max_requests"]) == (1, 1)
    assert line["log_level"] == "warning"


async def test_a_request_that_cannot_be_read_leaves_a_line() -> None:
    with capture_logs(processors=[merge_contextvars]) as lines:
        async with running_daemon() as daemon, raw_client(daemon) as client:
            await client.send(Generate(3, "x", temperature=-1.0))
            await client.receive_a(Failed)
    (line,) = ends_in(lines)
    assert (line["code"], line["request_id"], line["connection"]) == ("invalid_request", 3, 1)


async def test_a_cancel_leaves_one_line_wherever_it_meets_the_request() -> None:
    with capture_logs() as lines:
        async with running_daemon(n_slots=1) as daemon, raw_client(daemon) as client:
            await client.send(Generate(1, "x", shift=True), Generate(2, "x"))
            await client.receive_a(Delta, 1)
            await client.send(Cancel(2), Cancel(1))
            for _ in range(2):
                await client.receive_a(Finished)
    reasons = {line["request_id"]: line["reason"] for line in ends_in(lines)}
    assert reasons == {1: "cancelled", 2: "cancelled"}
    assert len(ends_in(lines)) == 2


async def test_requests_of_a_client_that_has_gone_leave_one_line_each() -> None:
    with capture_logs() as lines:
        async with running_daemon(n_slots=1) as daemon:
            async with raw_client(daemon) as client:
                await client.send(Generate(1, "x", shift=True))
                await client.receive_a(Delta)
                waiting = (Generate(2, "x"), Embed(3, ["x"] * 1000), Generate(4, "y" * 100_000))
                await client.send(*waiting)
                await client.receive_a(Accepted, 2)
            await all_have_left(daemon)
            await daemon.until(lambda: len(ends_in(lines)) == 4)
    assert {line["request_id"] for line in ends_in(lines)} == {1, 2, 3, 4}
    assert len(ends_in(lines)) == 4


async def test_requests_that_wait_for_a_model_in_vain_leave_grave_lines() -> None:
    broken = Event()

    def load(config: EngineConfig, progress: LoadProgress) -> ReferenceEngine:
        broken.wait()
        raise BadModel("no tensors")

    with capture_logs() as lines:
        async with running_daemon(load=load, waits_for_load=False) as daemon:
            async with raw_client(daemon) as client:
                await client.send(Generate(1, "x"))
                await client.receive_a(Accepted)
                broken.set()
                await client.receive_a(Failed)
    (line,) = ends_in(lines)
    assert (line["code"], line["log_level"]) == ("load_failed", "error")


def test_a_second_end_is_not_logged() -> None:
    with capture_logs() as lines:
        request = RequestLog(Generate(1, "x"))
        request.failed(Internal())
        request.finished("stop")
        request.failed(Internal())
    assert [line["event"] for line in lines] == ["request.failed"]


def test_a_cancelled_request_has_not_failed() -> None:
    with capture_logs() as lines:
        RequestLog(Embed(1, ["x"])).failed(Cancelled("the request was cancelled"), n_inputs=1)
    assert (lines[0]["event"], lines[0]["reason"]) == ("request.finished", "cancelled")


def test_of_an_error_only_numbers_and_the_place_are_logged() -> None:
    with capture_logs() as lines:
        RequestLog(Generate(1, "x")).failed(InvalidRequest("stop[0]", "SECRET", "SECRET"))
        RequestLog(Generate(2, "x")).failed(Overloaded("SECRET", n_waiting=3, scope="SECRET"))
    assert "SECRET" not in str(lines)
    assert lines[0]["field"] == "stop[0]"
    assert lines[1]["n_waiting"] == 3
