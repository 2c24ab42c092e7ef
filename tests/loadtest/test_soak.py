"""The soak: what it asks, how it accounts for the answers, and what it takes for a failure."""

import os
import subprocess
from collections import Counter
from itertools import islice
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketListener
from msgspec.structs import replace

from loadtest import bars
from loadtest.growth import Holding
from loadtest.soak.asks import FAILING, LEFT, REFUSALS, SHARES, Ask, Asks, Leave
from loadtest.soak.connects import come_and_go
from loadtest.soak.looks import Look, n_zombies_of
from loadtest.soak.measuring import measure_soak
from loadtest.soak.outcome import Counts, Seen, SoakLoad, soak_bars
from loadtest.soak.requests import Ground
from loadtest.soak.setup import soak_setup
from loadtest.soak.text import soak_text
from loadtest.soak.visitors import Tally, Visitor
from runnerd_protocol.connection import ServerConnection
from runnerd_protocol.messages import (
    Accepted,
    DaemonMessage,
    Failed,
    Finished,
    Generate,
    GetStatus,
    Hello,
    Status,
)
from tests.daemon import PATIENCE_S, running_daemon

GROUND = Ground(
    n_ctx=64,
    text="a text " * 40,
    tokens=list(range(1, 200)),
    chats=["a chat"],
    adapters=["verse"],
    reads_images=True,
    knows_schemas=True,
)
N_DRAWN = 3000
COUNTS = Counts(
    n_asked=10,
    n_finished=5,
    n_failed=1,
    n_answered=2,
    n_left=2,
    n_cancelled=1,
    n_connections=3,
    n_endless=0,
    n_wrong=0,
)
LOAD = SoakLoad(n_requests=100, n_warm_up=20)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the one that the command runs on


def look(
    n_requests: int, n_bytes: int = 10**7, n_threads: int = 5, n_tasks: int = 20, text: str = "a"
) -> Look:
    return Look(
        holding=Holding(n_requests, n_bytes, n_descriptors=20, n_threads=n_threads),
        is_at_rest=True,
        n_slots_busy=0,
        n_waiting=0,
        n_connections=1,
        n_cells_used=9,
        n_zombies=0,
        n_tasks=n_tasks,
        text=text,
    )


LOOKS = [look(n) for n in range(0, 101, 10)]
SEEN = Seen(
    counts=COUNTS,
    looks=LOOKS,
    connect_looks=LOOKS,
    n_tracebacks=0,
    returncode=0,
    is_gone=True,
)


def missed(seen: Seen) -> list[str]:
    return [bar.name for bar in soak_bars(LOAD, seen) if not bar.is_met]


# --- what is asked -------------------------------------------------------------------------


def test_the_same_seed_asks_the_same() -> None:
    assert list(islice(Asks(GROUND, 1), 300)) == list(islice(Asks(GROUND, 1), 300))
    assert list(islice(Asks(GROUND, 1), 300)) != list(islice(Asks(GROUND, 2), 300))


def test_every_kind_has_its_share() -> None:
    asks = list(islice(Asks(GROUND, 1), N_DRAWN))
    kinds = Counter(ask.kind for ask in asks)
    assert set(kinds) == {*SHARES, *REFUSALS}
    n_ordinary = sum(kinds[kind] for kind in SHARES)
    for kind, share in SHARES.items():
        assert abs(kinds[kind] / n_ordinary - share / sum(SHARES.values())) < 0.03, kind
    n_refused = sum(bool(ask.code) for ask in asks)
    assert abs(n_refused / N_DRAWN - FAILING) < 0.02
    n_left = sum(ask.leave is not None for ask in asks if ask.kind != "subscribe")
    assert abs(n_left / N_DRAWN - LEFT) < 0.03


def test_requests_are_left_in_every_way_by_the_clock_and_by_messages() -> None:
    left = [ask for ask in islice(Asks(GROUND, 1), N_DRAWN) if ask.leave is not None]
    assert {ask.leave for ask in left} == {"cancel", "close", "reset", "cut"}
    assert {ask.delay_s > 0 for ask in left} == {True, False}
    assert not any(ask.code for ask in left)


def test_a_model_is_asked_for_nothing_that_it_cannot() -> None:
    ground = Ground(64, "a text", [1, 2], [], [], reads_images=False, knows_schemas=False)
    kinds = {ask.kind for ask in islice(Asks(ground, 1), N_DRAWN)}
    assert kinds == {*SHARES, *REFUSALS} - {"chat", "adapter", "image", "schema", "bad image"}


# --- how it is accounted for ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "last", "text", "n_wrong"),
    [
        (Ask("plain", Generate(0, "")), Finished(1, "stop"), "a", 0),
        (Ask("plain", Generate(0, "")), Failed(1, "internal", "a bug"), "", 1),
        (Ask("plain", Generate(0, ""), leave="cancel"), Failed(1, "cancelled", ""), "", 0),
        (Ask("plain", Generate(0, "")), Failed(1, "cancelled", ""), "", 1),
        (Ask("too long", Generate(0, ""), code="prompt_too_long"), Finished(1, "stop"), "", 1),
        (
            Ask("too long", Generate(0, ""), code="prompt_too_long"),
            Failed(1, "internal", ""),
            "",
            1,
        ),
        (Ask("too long", Generate(0, ""), code="bad_grammar"), Failed(1, "bad_grammar", ""), "", 0),
        (Ask("grammar", Generate(0, ""), literal="maple"), Finished(1, "stop"), "maple", 0),
        (Ask("grammar", Generate(0, ""), literal="maple"), Finished(1, "length"), "map", 0),
        (Ask("grammar", Generate(0, ""), literal="maple"), Finished(1, "stop"), "map", 1),
        (Ask("grammar", Generate(0, ""), literal="maple"), Finished(1, "length"), "oasis", 1),
        (Ask("status", GetStatus(0)), Status(1, "ready"), "", 0),
    ],
)
def test_an_end_is_held_against_what_was_asked(
    ask: Ask, last: DaemonMessage, text: str, n_wrong: int
) -> None:
    tally = Tally(n_asked=1)
    tally.note_end(ask, last, text)
    assert tally.n_wrong == n_wrong
    assert tally.n_endless == 0


async def accept_and_hang_up(listener: SocketListener) -> None:
    async with await listener.accept() as stream:
        connection = ServerConnection()
        while True:
            for event in connection.receive(await stream.receive()):
                match event:
                    case Hello():
                        await stream.send(connection.welcome())
                    case Generate(request_id=request_id):
                        await stream.send(connection.send(Accepted(request_id)))
                        return


@pytest.mark.anyio
async def test_a_request_that_a_daemon_does_not_end_is_seen(tmp_path: Path) -> None:
    tally = Tally()
    path = tmp_path / "socket"
    asks = iter([Ask("plain", Generate(0, "Once"))])
    async with (
        await anyio.create_unix_listener(path) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(accept_and_hang_up, listener)
        await Visitor(path, 1, asks, tally).run()
    assert (tally.n_asked, tally.n_endless, tally.n_wrong) == (1, 1, 1)


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["cancel", "close", "reset", "cut"])
async def test_a_request_that_is_left_is_accounted_for(how: Leave) -> None:
    tally = Tally()
    asked = Generate(0, "Once", max_tokens=10_000, shift=True, ignore_end=True)
    asks = iter([Ask("plain", asked, leave=how, n_messages=2)])
    async with running_daemon() as daemon:
        await Visitor(daemon.path, 1, asks, tally).run()
        await daemon.has_all_slots()
    assert (tally.n_asked, tally.n_endless, tally.n_wrong) == (1, 0, 0)
    assert (tally.n_finished, tally.n_left) == ((1, 0) if how == "cancel" else (0, 1))


@pytest.mark.anyio
async def test_connections_come_and_go_in_every_way() -> None:
    async with running_daemon() as daemon:
        await come_and_go(daemon.path, seed=1, n_connections=60)
        await daemon.has_all_slots()
        with anyio.fail_after(PATIENCE_S):
            await daemon.until(lambda: daemon.server.n_connections == 0)
        assert daemon.runner.batcher is not None
        assert daemon.runner.batcher.seq_ids == ()


# --- what is a failure ---------------------------------------------------------------------


def test_what_stays_as_it_was_meets_every_bar() -> None:
    assert missed(SEEN) == []


def test_memory_that_grows_with_requests_is_seen() -> None:
    at_limit = [look(n, n_bytes=10**7 + 1023 * n) for n in range(0, 101, 10)]
    assert missed(replace(SEEN, looks=at_limit)) == []
    beyond = [look(n, n_bytes=10**7 + 1030 * n) for n in range(0, 101, 10)]
    assert missed(replace(SEEN, looks=beyond)) == ["memory per request, bytes"]
    assert missed(replace(SEEN, connect_looks=beyond)) == ["memory per connection, bytes"]


def test_what_the_warm_up_takes_is_no_growth() -> None:
    warming = [look(n, n_bytes=10**5 * min(n, 20)) for n in range(0, 101, 10)]
    assert missed(replace(SEEN, looks=warming)) == []


def test_threads_that_come_and_go_are_no_growth_and_one_that_stays_is() -> None:
    coming = [look(n, n_threads=5 + n // 10 % 2) for n in range(0, 101, 10)]
    assert missed(replace(SEEN, looks=coming)) == []
    staying = [look(n, n_threads=5 + n // 10 % 2 + n // 60) for n in range(0, 101, 10)]
    assert missed(replace(SEEN, looks=staying)) == ["more threads, by requests"]


def test_a_task_that_stays_is_seen() -> None:
    staying = [look(n, n_tasks=20 + n // 50) for n in range(0, 101, 10)]
    assert missed(replace(SEEN, looks=staying)) == ["more tasks, by requests"]
    assert missed(replace(SEEN, connect_looks=staying)) == ["more tasks, by connections"]


@pytest.mark.parametrize(
    ("changed", "bar"),
    [
        (replace(LOOKS[-1], is_at_rest=False), "looks at which it was not at rest"),
        (replace(LOOKS[-1], text="b"), "looks at which it said something else"),
        (replace(LOOKS[-1], n_zombies=1), "its children that nobody has waited for"),
    ],
)
def test_one_look_at_which_something_was_wrong_is_seen(changed: Look, bar: str) -> None:
    assert missed(replace(SEEN, looks=[*LOOKS[:-1], changed])) == [bar]
    assert missed(replace(SEEN, connect_looks=[*LOOKS[:-1], changed])) == [bar]


@pytest.mark.parametrize(
    ("seen", "bar"),
    [
        (replace(SEEN, counts=replace(COUNTS, n_endless=1)), "requests without an end"),
        (replace(SEEN, counts=replace(COUNTS, n_wrong=1)), "answers that were not to be expected"),
        (replace(SEEN, n_tracebacks=1), "tracebacks in its log"),
        (replace(SEEN, returncode=-9), "exit status"),
        (replace(SEEN, is_gone=False), "processes left behind"),
    ],
)
def test_whatever_else_goes_wrong_is_seen(seen: Seen, bar: str) -> None:
    assert missed(seen) == [bar]


def test_a_child_that_nobody_has_waited_for_is_seen() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is left as it is
    assert n_zombies_of(os.getpid()) >= 1
    child.wait()


# --- all of it -----------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_daemon_that_is_soaked_leaves_nothing_behind() -> None:
    load = SoakLoad(n_requests=60, n_warm_up=20, n_connects=20, n_pictures=1)
    told: list[str] = []
    with soak_setup("reference", None, None) as setup:
        outcome = await measure_soak(setup, load, told.append)
    few = {"memory per request, bytes", "memory per connection, bytes"}  # to say anything of these
    few |= {"more threads, by requests", "more threads, by connections"}
    assert [bar.name for bar in bars.missed(outcome.bars) if bar.name not in few] == []
    counts = outcome.seen.counts
    assert counts.n_asked == 60
    assert min(counts.n_finished, counts.n_failed, counts.n_answered, counts.n_left) > 0
    assert [each.holding.n_requests for each in outcome.seen.looks] == [*range(0, 61, 6)]
    assert "answers that were not to be expected" in soak_text(outcome)
    assert sum("of 60 requests" in line for line in told) == 10
