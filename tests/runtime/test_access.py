"""Who may connect: whom a daemon lets in, and how it turns the others away."""

import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from anyio.abc import UNIXSocketStream
from structlog.testing import capture_logs

from runnerd.client import ConnectionLost, attach, connect
from runnerd.peers import Access
from runnerd_protocol.messages import ProtocolError
from tests.daemon import HELLO, Daemon, RawClient, running_daemon
from tests.others import connected_as, let_all_connect, needs_root

pytestmark = [pytest.mark.anyio, needs_root]

STRANGER = 61_001
FRIEND, FRIENDS, GROUP = 61_900, 61_901, 61_902


def n_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@asynccontextmanager
async def client_of(sock: socket.socket) -> AsyncIterator[RawClient]:
    async with await UNIXSocketStream.from_socket(sock) as stream:
        yield RawClient(stream)


async def is_let_in(daemon: Daemon, sock: socket.socket) -> bool:
    async with client_of(sock) as client:
        with suppress(anyio.BrokenResourceError):  # it may be turned away before it says a word
            await client.send(HELLO)
        answer = await client.receive()
        if isinstance(answer, ProtocolError):
            assert answer.code == "not_allowed"
            assert await client.rest() == []
            return False
        return True


async def test_a_stranger_is_told_who_it_is_and_what_would_help_and_then_closed() -> None:
    async with running_daemon() as daemon:
        let_all_connect(daemon.path)
        async with client_of(connected_as(daemon.path, STRANGER)) as client:
            (error,) = await client.rest()
        assert isinstance(error, ProtocolError)
        assert (error.code, error.fatal) == ("not_allowed", True)
        assert error.details == {"uid": STRANGER, "gid": 0}
        assert f"user {STRANGER} may not" in error.message
        assert "join the socket's group 0" in error.message
        assert daemon.server.n_connections == 0


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "mode", "is_welcome"),
    [
        (0, 0, (), 0o600, True),
        (STRANGER, STRANGER, (), 0o666, False),
        (FRIEND, STRANGER, (), 0o600, True),
        (STRANGER, FRIENDS, (), 0o600, True),
        (STRANGER, STRANGER, (1, FRIENDS, 2), 0o600, True),
        (STRANGER, STRANGER, (), 0o660, False),
        (STRANGER, GROUP, (), 0o660, True),
        (STRANGER, STRANGER, (1, GROUP, 2), 0o660, True),
        (STRANGER, STRANGER, (*range(70_000, 71_000), GROUP), 0o660, True),
        (STRANGER, GROUP, (), 0o606, False),
        (STRANGER, GROUP, (), None, False),
    ],
)
async def test_those_come_in_who_are_allowed_or_of_the_group_that_may_write_to_the_socket(
    uid: int, gid: int, groups: Sequence[int], mode: int | None, is_welcome: bool
) -> None:
    access = Access(frozenset({FRIEND}), frozenset({FRIENDS}))
    async with running_daemon(access=access) as daemon:
        os.chown(daemon.path, 0, GROUP)
        let_all_connect(daemon.path)
        sock = connected_as(daemon.path, uid, gid, groups)
        if mode is None:
            daemon.path.unlink()
        else:
            daemon.path.chmod(mode)  # nobody has been accepted yet: that takes a turn of the loop
        assert await is_let_in(daemon, sock) == is_welcome


async def test_who_can_only_write_to_the_sockets_folder_cannot_give_itself_the_right() -> None:
    async with running_daemon() as daemon:
        let_all_connect(daemon.path)
        away = daemon.path.with_name("away")
        daemon.path.rename(away)
        with socket.socket(socket.AF_UNIX) as trap:
            trap.bind(str(daemon.path))
            os.chown(daemon.path, STRANGER, STRANGER)
            daemon.path.chmod(0o660)
            assert not await is_let_in(daemon, connected_as(away, STRANGER))
        daemon.path.unlink()
        away.rename(daemon.path)


async def test_root_in_a_user_namespace_is_whoever_made_it() -> None:
    async with running_daemon() as daemon:
        let_all_connect(daemon.path)
        sock = connected_as(daemon.path, STRANGER, poses_as_root=True)
        assert not await is_let_in(daemon, sock)


async def test_at_an_abstract_name_no_group_counts() -> None:
    name = f"\0runnerd-test-{os.getpid()}-{anyio.current_time()}"
    async with running_daemon() as daemon, anyio.create_task_group() as tasks:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(name)
        sock.listen()
        tasks.start_soon(daemon.server.listen, sock, tasks)
        assert await is_let_in(daemon, connected_as(name, 0))
        assert not await is_let_in(daemon, connected_as(name, STRANGER, 0))
        tasks.cancel_scope.cancel()


async def test_a_parents_socket_is_its_own_proof() -> None:
    async with running_daemon() as daemon, anyio.create_task_group() as tasks:
        with closing(socket.socket(socket.AF_UNIX)) as elsewhere, TemporaryDirectory() as folder:
            elsewhere.bind(f"{folder}/socket")
            elsewhere.listen()
            let_all_connect(Path(folder, "socket"))
            theirs = connected_as(Path(folder, "socket"), STRANGER)
            ours, _ = elsewhere.accept()
        tasks.start_soon(daemon.server.serve_parent, ours)
        async with attach(await UNIXSocketStream.from_socket(theirs)) as client:
            assert (await client.status()).n_connections == 1


async def test_the_client_says_why_it_was_turned_away() -> None:
    async with running_daemon() as daemon:
        let_all_connect(daemon.path)
        for _ in range(10):  # whichever comes first, its hello or our refusal
            stream = await UNIXSocketStream.from_socket(connected_as(daemon.path, STRANGER))
            with pytest.raises(ConnectionLost, match=f"not_allowed: user {STRANGER} may not"):
                async with attach(stream):
                    pass


async def test_turning_hundreds_away_holds_nothing_though_none_of_them_reads() -> None:
    async with running_daemon(max_connections=1) as daemon, connect(daemon.path) as client:
        let_all_connect(daemon.path)
        n_before = n_descriptors()
        with ExitStack() as stack:
            socks = [
                stack.enter_context(connected_as(daemon.path, STRANGER + i % 3)) for i in range(100)
            ]
            assert (await client.status()).n_connections == 1
            for sock in socks:
                sock.setblocking(False)
                await anyio.wait_readable(sock)
            assert n_descriptors() == n_before + len(socks)
        assert (await client.complete("x", max_tokens=3)).finished.n_generated == 3


async def test_an_offender_is_a_line_and_then_a_count() -> None:
    with capture_logs() as lines:
        async with running_daemon() as daemon:
            let_all_connect(daemon.path)
            for i in range(12):
                assert not await is_let_in(daemon, connected_as(daemon.path, STRANGER + i % 2))
            daemon.server.stop_accepting()
    told = [line for line in lines if line["event"] == "client.not_allowed"]
    assert [(line["uid"], line.get("n_more")) for line in told] == [
        (STRANGER, None),
        (STRANGER + 1, None),
        (STRANGER, 5),
        (STRANGER + 1, 5),
    ]
