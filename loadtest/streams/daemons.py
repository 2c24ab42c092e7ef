"""Daemons started for a measurement: ready by their own word, gone when it is over."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import perf_counter

from loadtest.streams.measure import Report
from loadtest.streams.recording import Load, ModelSetup
from loadtest.streams.run import run_clients
from runnerd.client import Client
from runnerd.launcher import launch

# The bare loop evaluates all prompts at once. So does a daemon whose streams may wait this long.
PATIENT = "--target-itl-ms=10000"

ENGINE_FREE = "layers=0"  # the reference engine's model whose steps cost next to nothing


async def run_daemon(setup: ModelSetup, load: Load) -> Report:
    """Start a daemon with a slot per stream, and put a load on it."""
    options = [
        f"--batch={setup.n_batch}",
        f"--ubatch={setup.n_ubatch}",
        f"--threads={setup.n_threads}",
        f"--kv={setup.kv}",
        f"--flash-attn={setup.flash_attn}",
        PATIENT,
    ]
    async with _ready(setup.model, load.n_streams, setup.n_ctx, options) as (client, ready_s):
        return await run_clients([client], load, ready_s)


async def run_engine_free(load: Load) -> Report:
    """Start a daemon with an engine that costs next to nothing, and put a load on it."""
    n_ctx = load.n_prompt + load.max_tokens
    options = ["--engine=reference"]
    async with _ready(ENGINE_FREE, load.n_streams, n_ctx, options) as (client, ready_s):
        return await run_clients([client], load, ready_s)


@asynccontextmanager
async def _ready(
    model: str, n_slots: int, n_ctx: int, options: Sequence[str]
) -> AsyncIterator[tuple[Client, float]]:
    """Yield a connection to a new daemon, and how long it took to be ready."""
    started_at = perf_counter()
    async with launch(model, slots=n_slots, ctx=n_ctx, options=options) as child:
        await child.ready()
        yield child.client, perf_counter() - started_at
