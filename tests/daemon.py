"""A daemon inside the test's event loop, on a real socket, and ways to talk to it."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import AF_UNIX, SHUT_WR, socket
from tempfile import TemporaryDirectory
from typing import Literal, TypeVar

import anyio
from anyio.abc import SocketAttribute, UNIXSocketStream
from msgspec.msgpack import Decoder

from runnerd.client import Client, GenerationStream, connect
from runnerd.config import Config, ImageLimits, SessionLimits
from runnerd.engine import open_engine
from runnerd.engine.base import EngineConfig, LoadProgress
from runnerd.engine.reference import ReferenceEngine
from runnerd.peers import Access
from runnerd.runner import Runner
from runnerd.server import Server
from runnerd.socket_io import raw_socket, receive
from runnerd_protocol.framing import FrameDecoder, encode_frame
from runnerd_protocol.messages import ClientMessage, DaemonMessage, Hello, Welcome

T = TypeVar("T", bound=ReferenceEngine)
M = TypeVar("M", bound=DaemonMessage)

PATIENCE_S = 20.0  # for what must happen at once, on a machine that has other things to do
HELLO = Hello(1, 1)

_decode = Decoder(DaemonMessage).decode


@dataclass(slots=True)
class Daemon:
    """Runner and server of one test. `error` is what ended the runner."""

    path: Path
    runner: Runner
    server: Server
    error: Exception | None = None
    has_ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def engine(self) -> ReferenceEngine:
        assert isinstance(self.runner.engine, ReferenceEngine)
        return self.runner.engine

    def engine_as(self, kind: type[T]) -> T:
        assert isinstance(self.runner.engine, kind)
        return self.runner.engine

    async def run(self) -> None:
        try:
            await self.runner.run()
        except Exception as err:
            self.error = err
        self.has_ended.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something in the daemon's own loop has come true."""
        with anyio.fail_after(PATIENCE_S):
            while not holds():
                await anyio.sleep(0.001)  # what a test asks about sets no event

    async def has_all_slots(self) -> None:
        """Assert that every slot can be had, all at once, and that nothing waits for one."""
        assert self.runner.batcher is not None
        with anyio.fail_after(PATIENCE_S):
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(connect(self.path))
                for _ in range(self.runner.config.engine.n_slots):
                    stream = await stack.enter_async_context(client.generate("probe", shift=True))
                    await anext(stream)
                    assert stream.accepted is not None
                    assert stream.accepted.n_ahead == 0
                status = await client.status()
                assert (status.n_slots_free, status.n_waiting) == (0, 0)
        await self.until(lambda: not self.runner.batcher or not self.runner.batcher.seq_ids)
        self.runner.batcher.check()


@asynccontextmanager
async def running_daemon(
    options: str = "layers=0",
    *,
    load: Callable[[EngineConfig, LoadProgress], ReferenceEngine] | None = None,
    waits_for_load: bool = True,
    n_slots: int = 4,
    n_ctx: int = 512,
    n_batch: int = 128,
    n_cells: int = 0,
    kv: Literal["auto", "split", "unified"] = "auto",
    adapters: tuple[str, ...] = (),
    limits: SessionLimits = SessionLimits(),  # noqa: B008  # frozen
    max_queue: int = 512,
    max_connections: int = 256,
    step_timeout_s: float = 60.0,
    images: ImageLimits = ImageLimits(),  # noqa: B008  # frozen
    access: Access = Access(),  # noqa: B008  # frozen
) -> AsyncIterator[Daemon]:
    """Run a daemon on the reference engine; whatever a test leaves running is cancelled."""
    engine = EngineConfig(
        options,
        "reference",
        n_slots,
        n_ctx,
        n_cells,
        n_batch=n_batch,
        n_ubatch=n_batch,
        kv=kv,
        adapters=tuple((name, name) for name in adapters),
    )
    with TemporaryDirectory() as folder:
        path = Path(folder, "socket")
        config = Config(
            engine=engine,
            socket_path=path,
            access=access,
            max_queue=max_queue,
            max_connections=max_connections,
            step_timeout_s=step_timeout_s,
            images=images,
            session=limits,
        )
        runner = Runner(config, load or open_engine)
        daemon = Daemon(path, runner, Server(runner))
        sock = socket(AF_UNIX)
        sock.setblocking(False)
        sock.bind(str(path))
        sock.listen(128)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.server.listen, sock, tasks)
            tasks.start_soon(daemon.run)
            try:
                while waits_for_load and runner.state in ("starting", "loading"):
                    await runner.changed.wait()
                yield daemon
            finally:
                await _end(daemon)
                tasks.cancel_scope.cancel()


async def _end(daemon: Daemon) -> None:
    with anyio.fail_after(PATIENCE_S, shield=True):
        daemon.runner.stop()
        daemon.runner.cancel_all()
        if isinstance(daemon.runner.engine, ReferenceEngine):
            daemon.runner.engine.close()  # lets go of whatever a test has made to wait
        await daemon.has_ended.wait()
        daemon.server.stop_accepting()
        await daemon.server.close()
        await daemon.runner.close()
    if daemon.runner.batcher is not None and daemon.error is None:
        daemon.runner.batcher.check()


class RawClient:
    """A client that sends what it likes, and shows all that comes back."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self.stream = stream
        self._frames = FrameDecoder(2**31)
        self._received: deque[DaemonMessage] = deque()

    @property
    def socket(self) -> socket:
        return self.stream.extra(SocketAttribute.raw_socket)

    async def send(self, *messages: ClientMessage | bytes) -> None:
        """Send messages, and bytes as they are, in one write."""
        parts = [m if isinstance(m, bytes) else encode_frame(m) for m in messages]
        await self.stream.send(b"".join(parts))

    async def receive(self) -> DaemonMessage:
        """Return the next message.

        Raises:
            anyio.EndOfStream, anyio.BrokenResourceError: there is none.
        """
        with anyio.fail_after(PATIENCE_S):
            while not self._received:
                data = await receive(raw_socket(self.stream), 2**16)
                if not data:
                    raise anyio.EndOfStream
                self._received.extend(_decode(payload) for payload in self._frames.feed(data))
        return self._received.popleft()

    async def receive_a(self, kind: type[M], request_id: int | None = None) -> M:
        """Return the next message of a kind, and of a request if one is named."""
        while True:
            message = await self.receive()
            if isinstance(message, kind) and request_id in (
                None,
                getattr(message, "request_id", None),
            ):
                return message

    async def rest(self) -> list[DaemonMessage]:
        """Return all messages until the daemon closes."""
        messages: list[DaemonMessage] = []
        while True:
            try:
                messages.append(await self.receive())
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return messages

    def shut_down_sending(self) -> None:
        """Close the half that we send on."""
        self.socket.shutdown(SHUT_WR)


@asynccontextmanager
async def raw_client(daemon: Daemon, *, greets: bool = True) -> AsyncIterator[RawClient]:
    """Connect; exchange hello and welcome unless told otherwise."""
    async with await anyio.connect_unix(daemon.path) as stream:
        client = RawClient(stream)
        if greets:
            await client.send(HELLO)
            assert isinstance(await client.receive(), Welcome)
        yield client


async def first_deltas(streams: Iterable[GenerationStream]) -> None:
    """Wait for a delta of every stream: all of them have a slot now."""
    with anyio.fail_after(PATIENCE_S):
        for stream in streams:
            await anext(stream)


async def started(client: Client, stack: AsyncExitStack, n_streams: int) -> list[GenerationStream]:
    """Start generations that never end by themselves, and wait for text of each."""
    streams = [
        await stack.enter_async_context(client.generate(f"stream {i}", shift=True))
        for i in range(n_streams)
    ]
    await first_deltas(streams)
    return streams
