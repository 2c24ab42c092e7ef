"""A daemon under load: greedy streams side by side, timed where a client sees them."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter

import anyio
import psutil

from loadtest.prompts import cut, prompt_texts
from loadtest.streams.measure import Report, report
from loadtest.streams.recording import Load, Round, StreamRecord
from runnerd.client import Client, connect
from runnerd_protocol.messages import Prompt, TokensPart


async def run_socket(socket: Path, load: Load, n_connections: int) -> Report:
    """Put a load on the daemon at a socket, its streams spread over connections."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(socket)) for _ in range(n_connections)]
        return await run_clients(clients, load)


async def run_clients(clients: Sequence[Client], load: Load, ready_s: float = 0.0) -> Report:
    """Put a load on a daemon over open connections."""
    rounds = [await _run_round(clients, load, n_round) for n_round in range(load.n_rounds)]
    return report(
        load,
        rounds,
        resident_bytes=(await clients[0].status()).resident_bytes,
        n_connections=len(clients),
        ready_s=ready_s,
    )


async def _run_round(clients: Sequence[Client], load: Load, n_round: int) -> Round:
    prompts = [
        cut(await clients[0].tokenize(text), load.n_prompt)
        for text in prompt_texts(load.seed, n_round, load.n_streams, load.n_prompt)
    ]
    before = await clients[0].status()
    cpu_before_s = _cpu_s(before.pid)
    records = [StreamRecord(0.0) for _ in prompts]
    async with anyio.create_task_group() as streams:
        for number, (prompt, record) in enumerate(zip(prompts, records, strict=True)):
            client = clients[number % len(clients)]
            streams.start_soon(_generate, client, prompt, load.max_tokens, record)
    after = await clients[0].status()
    cpu_s = _cpu_s(after.pid) - cpu_before_s
    return Round(records, load.n_prompt, after.n_steps - before.n_steps, cpu_s)


def _cpu_s(pid: int) -> float:
    """Return the CPU time that a daemon has used; 0 where its process cannot be seen."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    used_s: float = times.user + times.system
    return used_s


async def _generate(
    client: Client, prompt: list[int], max_tokens: int, record: StreamRecord
) -> None:
    record.asked_at = perf_counter()
    asked: Prompt = [TokensPart(prompt)]
    async with client.generate(asked, max_tokens=max_tokens, temperature=0.0) as stream:
        async for delta in stream:
            record.arrivals.append((perf_counter(), delta.n_tokens))
    ended_at = perf_counter()
    record.n_deltas = len(record.arrivals)
    finished = stream.finished
    assert finished is not None, "a stream that ends has a last message"
    # Tokens that never became text are only in the count of the last message.
    n_textless = finished.n_generated - record.n_generated
    if n_textless > 0:
        record.arrivals.append((ended_at, n_textless))
    record.n_cached = finished.n_cached
    record.ended_early = finished.n_generated < max_tokens
