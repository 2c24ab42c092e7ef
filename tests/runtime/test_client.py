"""The client library, above all where things end badly."""

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from anyio.abc import UNIXSocketStream

from runnerd.client import CannotConnect, CannotSend, Client, ConnectionLost, RequestFailed, connect
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
)
from tests.daemon import PATIENCE_S, running_daemon
from tests.engines import GatedLoad
from tests.scripted import WELCOME, say, scripted

pytestmark = pytest.mark.anyio


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


async def test_where_nobody_listens_the_error_says_what_to_do() -> None:
    advice = "No such file.*runnerd serve MODEL --socket .*nothing"
    with TemporaryDirectory() as folder, pytest.raises(CannotConnect, match=advice):
        async with connect(Path(folder, "nothing")):
            pass


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
            await client.complete("x", no_such_option=1)  # type: ignore[call-arg]
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
