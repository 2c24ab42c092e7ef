"""Runs the bare decode loop in a process of its own, and reports on it as on a daemon."""

import sys
from subprocess import PIPE
from time import perf_counter
from typing import TypeVar

import anyio
import msgspec
import psutil
from anyio.streams.buffered import BufferedByteReceiveStream

from loadtest.streams.measure import Report, report
from loadtest.streams.raw_messages import RawRequest, Ready, Rounds
from loadtest.streams.recording import Load, ModelSetup

MAX_LINE_BYTES = 64 * 2**20  # all rounds are one line, of some 25 bytes per token

T = TypeVar("T")


class RawFailed(Exception):
    """The loop has ended without an answer; its stderr, passed on, says why."""


async def run_raw(setup: ModelSetup, load: Load) -> Report:
    """Start the loop, let it run its rounds, and end it.

    Raises:
        RawFailed: it could not.
    """
    request = msgspec.json.encode(RawRequest(setup, load)).decode()
    command = [sys.executable, "-m", "loadtest.streams.raw_loop", request]
    started_at = perf_counter()
    async with await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None) as process:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        await _next(lines, Ready)
        ready_s = perf_counter() - started_at
        answer = await _next(lines, Rounds)
        resident_bytes: int = psutil.Process(process.pid).memory_info().rss
    return report(load, answer.rounds, resident_bytes=resident_bytes, ready_s=ready_s)


async def _next(lines: BufferedByteReceiveStream, kind: type[T]) -> T:
    try:
        line = await lines.receive_until(b"\n", MAX_LINE_BYTES)
    except (anyio.EndOfStream, anyio.IncompleteRead) as err:
        raise RawFailed("the bare loop ended early") from err
    return msgspec.json.decode(line, type=kind)
