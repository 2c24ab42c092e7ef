"""A process that plans: llama.cpp may end it, and what it has taken of memory ends with it."""

import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import Signals

import anyio
from anyio.abc import ByteReceiveStream, Process
from msgspec import DecodeError, json

from runnerd.errors import (
    BadModel,
    ConfigError,
    EngineFailed,
    ModelMissing,
    OutOfMemory,
    Overloaded,
)
from runnerd.last_words import LastWords
from runnerd_protocol.messages import Memory

NICENESS = 10
MAX_PLAN_BYTES = 2**22  # of JSON: a hundred bytes for a layer, of which models have hundreds
USAGE = 64
REFUSALS = (USAGE, ConfigError.exit_code, BadModel.exit_code, ModelMissing.exit_code)


class PlanRefused(Exception):
    """There is no plan of this model or of these settings; `code` is the exit status."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


async def run_plan(command: Sequence[str], timeout_s: float) -> Memory:
    """Run a command, and return the plan that it prints, as `runnerd plan --json` does.

    The process has ended, or is killed, when this returns.

    Raises:
        PlanRefused: it says that it cannot be planned, and why.
        EngineFailed: it took too long, crashed, or printed no plan.
        Overloaded: it cannot be started.
    """
    words, printed, code = LastWords(), b"", None
    with anyio.move_on_after(timeout_s):
        async with _started(command) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(words.read, process.stderr)
                printed = await _all_of(process.stdout)
                if len(printed) > MAX_PLAN_BYTES:
                    process.kill()
            code = await process.wait()
    if code is None:
        raise EngineFailed(f"planning has taken longer than {timeout_s:g} s", timeout_s=timeout_s)
    if code and not (code == OutOfMemory.exit_code and printed):
        raise _failure(code, words.summary())  # one that does not fit is printed all the same
    try:
        return json.decode(printed, type=Memory)
    except DecodeError as err:
        raise EngineFailed(f"planning has printed no plan: {err}") from err


@asynccontextmanager
async def _started(command: Sequence[str]) -> AsyncIterator[Process]:
    """Start a process for the time of a block; it does not outlive it."""
    with anyio.CancelScope(shield=True):  # or it might run, and nobody know of it
        try:
            process = await anyio.open_process(command, stdin=subprocess.DEVNULL)
        except OSError as err:
            raise Overloaded(f"no process for planning can be started: {err.strerror}") from err
    _put_last(process.pid)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


def _put_last(pid: int) -> None:
    """Let the daemon go first: with the cores, and when the kernel needs memory.

    Steps wait for the slowest of their threads: on two cores a process beside them that is as
    important took four fifths of all tokens, and this one takes a tenth.
    """
    with suppress(OSError):  # it may have ended, or this is forbidden: it is planned all the same
        os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


async def _all_of(stream: ByteReceiveStream) -> bytes:
    """Return all that a stream has to say, or a little more than is of use."""
    data = bytearray()
    async for chunk in stream:
        data += chunk
        if len(data) > MAX_PLAN_BYTES:
            break
    return bytes(data)


def _failure(code: int, words: str) -> Exception:
    """Return what an exit status means; `words` are the last that the process has said."""
    words = words.removeprefix("runnerd: ")
    if code in REFUSALS:
        return PlanRefused(code, words)
    end = f"exit status {code}" if code > 0 else Signals(-code).name
    return EngineFailed(f"planning ended by {end}{words and f': {words}'}", status=code)
