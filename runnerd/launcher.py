"""For parents: start a daemon as a child, watch it, talk to it, and leave nothing behind.

    async with launch("model.gguf", slots=4) as child:
        await child.ready()
        completion = await child.client.complete("Once", max_tokens=20)

The child is spoken to over one end of a socketpair that it inherits: no path, no port, and
nobody else can connect. It ends when that socket closes, so also when the parent is killed.
It runs in a session of its own: Ctrl-C in the parent's terminal reaches the parent alone,
which then ends the child in its own time.
"""

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
from anyio.abc import Process, UNIXSocketStream

from runnerd.client import Client, ClientError, ConnectionLost, attach
from runnerd.last_words import LastWords
from runnerd_protocol.messages import Status

END_S = 5.0  # for a child to end by itself after its socket has closed
TERM_S = 2.0  # and after SIGTERM; then it is killed
STDERR_S = 1.0  # for the rest of stderr to arrive after the end

EXIT_CAUSES = {
    0: "it was told to stop",
    64: "it was started with options that it does not take",
    65: "the model cannot be used",
    66: "there is no such model",
    70: "internal error",
    71: "out of memory",
    78: "a setting is wrong",
}
CRASH_SIGNALS = {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"}


class StartFailed(ClientError):
    """There is no process: it could not be started."""


class ChildDied(ClientError):
    """The child has ended. `returncode` is negative for a signal; `last_lines` of stderr.

    `sent` is the signal that we have ended it with, None if it has ended by itself.
    """

    def __init__(
        self, returncode: int, last_words: LastWords, sent: signal.Signals | None = None
    ) -> None:
        self.returncode = returncode
        self.last_lines = last_words.lines
        self.sent = sent
        words = last_words.summary()
        super().__init__(
            f"the daemon has ended: {describe_exit(returncode, sent)}{words and f': {words}'}"
        )


class Child:
    """A running daemon and the connection to it. Made by `launch`."""

    def __init__(self, client: Client, running: "_Running") -> None:
        self.client = client
        self._running = running

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._running.process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, or minus the number of the signal; None while it runs."""
        return self._running.process.returncode

    async def ready(self, on_status: Callable[[Status], None] | None = None) -> Status:
        """Wait until the model is loaded; `on_status` is told of each step of the load.

        Raises:
            ChildDied: the load failed, or the child ended; the message says why.
        """
        try:
            async with self.client.subscribe() as statuses:
                async for status in statuses:
                    if on_status is not None:
                        on_status(status)
                    if status.state == "ready":
                        return status
                    if status.last or status.state in ("failed", "stopped"):
                        break
        except ConnectionLost as err:
            raise await self.death() from err
        raise await self.death()

    async def death(self) -> ChildDied:
        """Return why the child has ended; one that has not is given some seconds to do so."""
        return await self._running.end()


@asynccontextmanager
async def launch(
    model: str,
    *,
    slots: int | None = None,
    ctx: int | None = None,
    options: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
    python: str = sys.executable,
) -> AsyncIterator[Child]:
    """Run a daemon for as long as the block lasts.

    `options` are further ones of `runnerd serve`, `on_line` is told of each line of its stderr.

    Raises:
        StartFailed: there is no such `python`, or the system has no room for a process.
        ChildDied: it ended before it answered, or failed while the block was waiting for it.
    """
    arguments = [*options, "--", model]
    for name, value in (("--slots", slots), ("--ctx", ctx)):
        if value is not None:
            arguments.insert(0, f"{name}={value}")
    ours, theirs = _socketpair()
    with ours, theirs:
        process = await _start(python, arguments, theirs)
        running = _Running(process, LastWords(on_line))
        try:
            theirs.close()  # or the end of the child would not end the connection
            with _unwrapped():
                async with anyio.create_task_group() as tasks:
                    assert process.stderr is not None
                    tasks.start_soon(running.last_words.read, process.stderr)
                    async with _connected(running, ours) as client:
                        yield Child(client, running)
                    tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await process.aclose()


def _socketpair() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair()
    except OSError as err:
        raise StartFailed(f"cannot make a socket for the child: {err.strerror}") from err


async def _start(python: str, arguments: Sequence[str], sock: socket.socket) -> Process:
    # -P: modules in the working folder must not take the place of the standard library's.
    command = [python, "-P", "-m", "runnerd", "serve", f"--fd={sock.fileno()}", *arguments]
    try:
        return await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what native libraries print is not the parent's output
            stderr=subprocess.PIPE,
            pass_fds=[sock.fileno()],
            start_new_session=True,
        )
    except OSError as err:
        raise StartFailed(f"cannot start {python}: {err.strerror}") from err


@asynccontextmanager
async def _connected(running: "_Running", sock: socket.socket) -> AsyncIterator[Client]:
    """Attach to a child, and see to its end; a connection lost to its death names the cause."""
    is_greeted = False
    try:
        async with attach(await UNIXSocketStream.from_socket(sock)) as client:
            is_greeted = True
            yield client
    except ConnectionLost as err:
        death = await running.end()
        if death.returncode == 0 and is_greeted:  # it ended well: the connection is all there is
            raise
        raise death from err
    finally:
        await running.end()


class _Running:
    """A child's process, with what is known about its end."""

    def __init__(self, process: Process, last_words: LastWords) -> None:
        self.process = process
        self.last_words = last_words
        self._sent: signal.Signals | None = None

    async def end(self) -> ChildDied:
        """Wait for the child's end and its last words; end it by force if it takes too long."""
        with anyio.CancelScope(shield=True):
            for seconds, then in ((END_S, signal.SIGTERM), (TERM_S, signal.SIGKILL)):
                with anyio.move_on_after(seconds):
                    await self.process.wait()
                if self.process.returncode is not None:
                    break
                with suppress(ProcessLookupError):  # it ended just now
                    self.process.send_signal(then)
                    self._sent = then
            returncode = await self.process.wait()
            with anyio.move_on_after(STDERR_S):
                await self.last_words.complete.wait()
        return ChildDied(returncode, self.last_words, self._sent)


def describe_exit(returncode: int, sent: signal.Signals | None = None) -> str:
    """Return in plain words how a process has ended; `sent` is what we have ended it with."""
    name = _signal_name(-returncode)
    if sent is not None:
        outcome = name if returncode < 0 else f"exit status {returncode}"
        return f"it did not end by itself and was sent {sent.name} ({outcome})"
    if returncode >= 0:
        return f"{EXIT_CAUSES.get(returncode, 'unknown cause')} (exit status {returncode})"
    if name in CRASH_SIGNALS:
        return f"it crashed ({name})"
    hint = ", perhaps because memory ran out" if name == "SIGKILL" else ""
    return f"it was killed by {name}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Let a lone exception pass as it was raised, not as a group of one."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise
