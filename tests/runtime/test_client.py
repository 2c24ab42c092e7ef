"""The client library, above all where things end badly."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from anyio.abc import SocketStream, UNIXSocketStream

from runnerd.client import CannotSend, Client, ConnectionLost, RequestFailed, connect
from runnerd.socket_io import raw_socket, receive
from runnerd_protocol.framing import encode_frame
from runnerd_protocol.messages import (
    Accepted,
    DaemonMessage,
    Delta,
    Failed,
    Finished,
    ProtocolError,
    Status,
    TextPart,
    Welcome,
)
from tests.daemon import PATIENCE_S, running_daemon
from tests.engines import GatedLoad, SteppedEngine

pytestmark = pytest.mark.anyio

WELCOME = Welcome(1, 2**24)


async def say(stream: UNIXSocketStream, *messages: DaemonMessage | bytes) -> None:
    await stream.send(b"".join(m if isinstance(m, bytes) else encode_frame(m) for m in messages))


@asynccontextmanager
async def scripted(script: Callable[[UNIXSocketStream], Awaitable[None]]) -> AsyncIterator[Path]:
    """Listen as a daemon that reads once, follows its script, and closes."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "socket")

        async def serve(stream: SocketStream) -> None:
            assert isinstance(stream, UNIXSocketStream)
            async with stream:
                await receive(raw_socket(stream), 2**16)
                await script(stream)

        async def accept() -> None:
            await listener.serve(serve)

        async with (
            await anyio.create_unix_listener(path) as listener,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(accept)
            yield path
            tasks.cancel_scope.cancel()


# --- streams that end badly ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "last_bytes",
    [b"", encode_frame(Delta(1, "half"))[:9], b"\0", encode_frame(Finished(1, "length"))[:-1]],
)
async def test_a_stream_that_ends_without_its_end_is_no_success(last_bytes: bytes) -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await receive(raw_socket(stream), 2**16)
        await say(stream, Accepted(1), Delta(1, "partial"), last_bytes)

    async with scripted(script) as path, connect(path) as client, client.generate("x") as stream:
        texts = []
        with pytest.raises(ConnectionLost):
            texts += [delta.text async for delta in stream]
        assert stream.finished is None


async def test_text_that_was_lost_on_the_way_is_noticed() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await receive(raw_socket(stream), 2**16)
        await say(stream, Accepted(1), Delta(1, "abc"), Finished(1, "length", n_text_bytes=9))

    async with scripted(script) as path, connect(path) as client:
        with pytest.raises(ConnectionLost, match="9 bytes of text, 3 came"):
            await client.complete("x")


@pytest.mark.parametrize(
    "message", [Delta(1, "x"), Finished(7, "stop"), WELCOME, b"\0\0\0\x01\xc1", b"\xff\xff\xff\xff"]
)
async def test_a_daemon_that_breaks_the_protocol_is_left(message: DaemonMessage | bytes) -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await receive(raw_socket(stream), 2**16)
        await say(stream, message)
        await receive(raw_socket(stream), 2**16)

    async with scripted(script) as path, connect(path) as client:
        with pytest.raises(ConnectionLost, match="broke the protocol"):
            await client.complete("x")


async def test_everybody_is_told_of_the_loss_with_an_exception_of_their_own() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await receive(raw_socket(stream), 2**16)

    errors: list[ConnectionLost] = []

    async def wait(client: Client) -> None:
        with pytest.raises(ConnectionLost) as caught:
            await client.complete("x")
        errors.append(caught.value)

    async with scripted(script) as path, connect(path) as client:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait, client)
        with pytest.raises(ConnectionLost):
            await client.status()
    assert len(set(map(id, errors))) == 3


async def test_a_refused_greeting_says_why() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, ProtocolError("unsupported_version", "too new"))

    async with scripted(script) as path:
        with pytest.raises(ConnectionLost, match="unsupported_version: too new"):
            async with connect(path):
                pass


async def test_a_daemon_that_closes_before_its_welcome_is_lost() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        pass

    async with scripted(script) as path:
        with pytest.raises(ConnectionLost):
            async with connect(path):
                pass


async def test_the_reason_for_a_close_is_told_though_a_send_notices_it_first() -> None:
    closed = anyio.Event()

    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME, ProtocolError("shutting_down", "good night"))
        await stream.aclose()
        closed.set()

    async with scripted(script) as path:
        with pytest.raises(ConnectionLost, match="good night"):
            async with connect(path) as client:
                await closed.wait()
                await client.complete("x")


async def test_what_came_before_a_breach_of_the_protocol_is_delivered() -> None:
    for breach in (b"\0\0\0\x01\xc1", b"\xff\xff\xff\xff", encode_frame(WELCOME)):

        async def script(stream: UNIXSocketStream, breach: bytes = breach) -> None:
            await say(stream, WELCOME)
            await receive(raw_socket(stream), 2**16)
            end = Finished(1, "length", n_text_bytes=3)
            await say(stream, Accepted(1), Delta(1, "abc"), end, breach)

        async with scripted(script) as path, connect(path) as client:
            assert (await client.complete("x")).text == "abc"
            with pytest.raises(ConnectionLost, match="broke the protocol"):
                await client.status()


async def test_a_reproach_that_is_not_fatal_does_not_end_the_connection() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME, ProtocolError("bad_message", "what?", fatal=False))
        await receive(raw_socket(stream), 2**16)
        await say(stream, Accepted(1), Finished(1, "length"))

    async with scripted(script) as path, connect(path) as client:
        assert (await client.complete("x")).finished.reason == "length"


async def test_a_reproach_that_is_not_fatal_fails_the_request_that_it_names() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await receive(raw_socket(stream), 2**16)
        details: dict[str, int | float | str | None] = {"request_id": 1}
        await say(stream, ProtocolError("bad_message", "what?", fatal=False, details=details))
        await receive(raw_socket(stream), 2**16)
        await say(stream, Status(2, "ready", last=True))

    async with scripted(script) as path, connect(path) as client, client.generate("x") as stream:
        with anyio.fail_after(PATIENCE_S), pytest.raises(RequestFailed, match="bad_message: what"):
            await anext(stream)
        assert (await client.status()).state == "ready"


async def test_nobody_listens_is_an_os_error() -> None:
    with TemporaryDirectory() as folder, pytest.raises(OSError, match="No such file"):
        async with connect(Path(folder, "nothing")):
            pass


# --- exceptions and cancellation ----------------------------------------------------------------


class OfTheCaller(Exception):
    pass


async def test_the_callers_own_exception_arrives_as_it_is() -> None:
    async with running_daemon() as daemon:
        cause = ValueError("cause")
        with pytest.raises(OfTheCaller) as caught:
            async with connect(daemon.path) as client, client.generate("x", shift=True) as stream:
                await anext(stream)
                raise OfTheCaller from cause
        assert caught.value.__cause__ is cause
        await daemon.has_all_slots()


async def test_the_callers_own_exception_outlives_the_loss_of_the_connection() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await receive(raw_socket(stream), 2**16)
        await say(stream, Accepted(1))

    async with scripted(script) as path:
        with pytest.raises(OfTheCaller):
            async with connect(path) as client, client.generate("x") as stream:
                with pytest.raises(ConnectionLost):
                    await anext(stream)
                raise OfTheCaller


async def test_a_group_of_the_caller_stays_a_group() -> None:
    async with running_daemon() as daemon:
        group = ExceptionGroup("two", [OfTheCaller(1), OfTheCaller(2)])
        with pytest.raises(ExceptionGroup) as caught:
            async with connect(daemon.path):
                raise group
        assert caught.value.exceptions == group.exceptions


async def test_a_cancel_scope_around_a_stream_ends_it_at_the_daemon_too() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with anyio.CancelScope() as scope:
            async with client.generate("x", shift=True) as stream:
                async for _ in stream:
                    scope.cancel()
        assert scope.cancelled_caught
        await daemon.until(lambda: not daemon.runner.batcher or not daemon.runner.batcher.seq_ids)
        assert (await client.complete("y", max_tokens=3)).finished.n_generated == 3


async def test_a_cancel_scope_around_a_connection_ends_all_of_it() -> None:
    async with running_daemon() as daemon:
        with anyio.CancelScope() as scope:
            async with connect(daemon.path) as client, client.generate("x", shift=True) as stream:
                async for _ in stream:
                    scope.cancel()
        assert scope.cancelled_caught
        await daemon.until(lambda: daemon.server.n_connections == 0)
        await daemon.has_all_slots()


async def test_a_timeout_around_a_completion_leaves_the_connection_usable() -> None:
    async with running_daemon(load=SteppedEngine) as daemon, connect(daemon.path) as client:
        with anyio.move_on_after(0.05) as scope:
            await client.complete("x")
        assert scope.cancelled_caught
        daemon.engine_as(SteppedEngine).let_all_go()
        assert (await client.complete("y", max_tokens=3)).finished.n_generated == 3
        await daemon.has_all_slots()


async def test_a_stream_whose_block_was_left_gives_nothing_more() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        async with client.generate("x", shift=True) as stream:
            await anext(stream)
        with anyio.fail_after(PATIENCE_S), pytest.raises(ConnectionLost, match="block was left"):
            async for _ in stream:
                pass


async def test_leaving_the_connections_block_ends_its_requests() -> None:
    async with running_daemon() as daemon:
        for _ in range(20):
            async with connect(daemon.path) as client:
                stack = AsyncExitStack()
                await stack.enter_async_context(client.generate("x", shift=True))
                await stack.aclose()
        await daemon.has_all_slots()


async def silence(stream: UNIXSocketStream) -> None:
    """Welcome a client, and then say nothing until it goes."""
    await say(stream, WELCOME)
    while await receive(raw_socket(stream), 2**16):
        pass


async def test_leaving_the_connections_block_ends_what_other_tasks_wait_for() -> None:
    n_lost = 0

    async def wait(client: Client) -> None:
        nonlocal n_lost
        with pytest.raises(ConnectionLost, match="closed here"):
            await client.status()
        n_lost += 1

    with anyio.fail_after(PATIENCE_S):
        async with scripted(silence) as path, anyio.create_task_group() as tasks:
            async with connect(path) as client:
                for _ in range(3):
                    tasks.start_soon(wait, client)
                await anyio.wait_all_tasks_blocked()
    assert n_lost == 3


async def test_after_the_connections_block_a_call_says_that_it_is_lost() -> None:
    async with scripted(silence) as path:
        async with connect(path) as client:
            pass
        with pytest.raises(ConnectionLost, match="closed here"):
            await client.status()


async def test_a_cancelled_stream_stays_cancelled_after_the_connections_block() -> None:
    async def hold(client: Client) -> None:
        async with client.generate("x"):
            await anyio.sleep_forever()

    async with scripted(silence) as path, anyio.create_task_group() as tasks:
        async with connect(path) as client:
            tasks.start_soon(hold, client)
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_what_is_shielded_in_a_cancelled_connection_learns_of_the_loss() -> None:
    with anyio.fail_after(PATIENCE_S):
        async with scripted(silence) as path:
            with anyio.CancelScope() as scope:
                async with connect(path) as client:
                    scope.cancel()
                    with anyio.CancelScope(shield=True), pytest.raises(ConnectionLost):
                        await client.status()


# --- use ----------------------------------------------------------------------------------------


async def test_tasks_share_a_client() -> None:
    async with running_daemon(n_slots=8) as daemon, connect(daemon.path) as client:
        alone = {
            i: (await client.complete(f"{i}", max_tokens=20, temperature=0.0)).text
            for i in range(20)
        }
        together: dict[int, str] = {}

        async def run(i: int) -> None:
            done = await client.complete(f"{i}", max_tokens=20, temperature=0.0)
            together[i] = done.text
            assert await client.tokenize(f"{i}", add_bos=False) == list(f"{i}".encode())
            assert (await client.status()).state == "ready"

        async with anyio.create_task_group() as tasks:
            for i in range(20):
                tasks.start_soon(run, i)
        assert together == alone


async def test_a_refused_request_raises_what_the_daemon_said() -> None:
    async with running_daemon(n_ctx=64) as daemon, connect(daemon.path) as client:
        with pytest.raises(RequestFailed, match=r"prompt_too_long: .*101.*64") as caught:
            await client.complete("x" * 100)
        assert isinstance(caught.value.failed, Failed)
        assert (await client.complete("x", max_tokens=1)).finished.n_generated == 1


async def test_what_cannot_be_sent_is_refused_here() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        with pytest.raises(CannotSend):
            await client.complete("\ud800")
        with pytest.raises(CannotSend):
            await client.complete("x", seed=2**64)
        with pytest.raises(CannotSend, match=r"Generate of 167772\d\d bytes, .* 16777216"):
            await client.complete("x" * (16 * 2**20))
        with pytest.raises(TypeError):
            await client.complete("x", no_such_option=1)
        assert (await client.complete("x", max_tokens=1)).finished.n_generated == 1


async def test_a_stream_tells_that_it_was_accepted_and_how_it_finished() -> None:
    async with running_daemon() as daemon, connect(daemon.path) as client:
        async with client.generate([TextPart("x")], max_tokens=5) as stream:
            assert stream.finished is None
            first = await anext(stream)
            assert stream.accepted == Accepted(1)
            done = await stream.completion()
        assert done.finished.n_text_bytes == len((first.text + done.text).encode())


async def test_a_model_is_described_once_it_is_loaded() -> None:
    load = GatedLoad()
    async with (
        running_daemon(load=load, waits_for_load=False) as daemon,
        connect(daemon.path) as client,
    ):
        assert (await client.status()).state == "loading"
        async with client.subscribe() as statuses:
            assert (await anext(statuses)).state == "loading"
            load.let_go()
            assert (await client.model()).n_ctx == 512
        assert client.welcome is not None
        assert client.welcome.version == 1


async def test_a_message_in_single_bytes_is_understood() -> None:
    async def script(stream: UNIXSocketStream) -> None:
        await say(stream, WELCOME)
        await receive(raw_socket(stream), 2**16)
        end: list[DaemonMessage] = [
            Accepted(1),
            Delta(1, "é"),
            Finished(1, "length", n_text_bytes=2),
        ]
        for byte in b"".join(encode_frame(message) for message in end):
            await stream.send(bytes([byte]))

    async with scripted(script) as path, connect(path) as client:
        assert (await client.complete("x")).text == "é"
