"""How soon a daemon says how it is, whatever it does meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from msgspec import Struct

from loadtest.bars import Bar, at_most
from loadtest.console import Tell
from loadtest.health.probe import Probe, probing
from loadtest.images.requests import QUESTION, ask, pictures
from loadtest.images.setup import ImageSetup
from loadtest.rates import percentile
from loadtest.streams.recording import Load
from loadtest.streams.run import run_clients
from runnerd.client import Client
from runnerd.launcher import launch

MOST_MS = 50.0
N_STREAMS, N_CTX, N_CELLS, N_LONG = 64, 4096, 8192, 3000
N_IMAGE_SLOTS, N_IMAGE_CTX, IMAGE_SIDE = 4, 512, 256


class Waits(Struct, frozen=True):
    """How long a status was waited for in one situation, in milliseconds."""

    situation: str
    n_asked: int
    p50_ms: float
    p99_ms: float
    most_ms: float


class HealthOutcome(Struct, frozen=True):
    """Everything that was measured, and the bars."""

    waits: list[Waits]
    bars: list[Bar]


async def measure_health(setup: ImageSetup, n_rounds: int, tell: Tell) -> HealthOutcome:
    """Start a daemon for texts, and one that reads images; ask both while they work.

    Raises:
        ClientError: a daemon has ended early, or does not read images, and why.
    """
    texts = [f"--ctx-total={N_CELLS}"]
    waits: dict[str, list[float]] = {}
    with _socket() as path:
        options = [*texts, f"--socket={path}"]
        with probing(path) as probe:
            async with launch(setup.model, slots=N_STREAMS, ctx=N_CTX, options=options) as child:
                with probe.during("loading"):
                    await child.ready()
                await _ask_texts(child.client, probe, n_rounds, tell)
                probe.end()
        waits |= probe.waits_ms
    with _socket() as path:
        options = [*setup.options, f"--socket={path}"]
        with probing(path) as probe:
            async with launch(
                setup.model, slots=N_IMAGE_SLOTS, ctx=N_IMAGE_CTX, options=options
            ) as child:
                await child.ready()
                await _ask_images(child.client, probe, n_rounds)
                probe.end()
        waits |= probe.waits_ms
    found = [_waits(situation, each) for situation, each in waits.items()]
    return HealthOutcome(found, health_bars(found))


def health_bars(waits: list[Waits]) -> list[Bar]:
    """Hold the figures against their limit."""
    return [
        at_most(f"status while {each.situation}, p99, ms", each.p99_ms, MOST_MS) for each in waits
    ]


async def _ask_texts(client: Client, probe: Probe, n_rounds: int, tell: Tell) -> None:
    loads = {
        "idle": None,
        "one stream generates": _load(1, 16, 64, n_rounds),
        f"a prompt of {N_LONG} tokens is evaluated": _load(1, N_LONG, 1, n_rounds),
        f"{N_STREAMS} streams generate": _load(N_STREAMS, 16, 64, n_rounds),
    }
    for situation, load in loads.items():
        with probe.during(situation):
            if load is None:
                await anyio.sleep(1.0)
            else:
                await run_clients([client], load)
        tell(f"measured while {situation}")


async def _ask_images(client: Client, probe: Probe, n_rounds: int) -> None:
    new = pictures(IMAGE_SIDE)
    with probe.during("images are encoded"):
        for _ in range(4 * n_rounds):
            await ask(client, next(new), QUESTION)


def _load(n_streams: int, n_prompt: int, max_tokens: int, n_rounds: int) -> Load:
    return Load(
        n_streams=n_streams, n_prompt=n_prompt, max_tokens=max_tokens, n_rounds=n_rounds, seed=1
    )


def _waits(situation: str, waits_ms: list[float]) -> Waits:
    p50_ms, p99_ms = percentile(waits_ms, 50), percentile(waits_ms, 99)
    return Waits(situation, len(waits_ms), p50_ms, p99_ms, max(waits_ms))


@contextmanager
def _socket() -> Iterator[Path]:
    with TemporaryDirectory(prefix="loadtest-") as folder:
        yield Path(folder, "socket")
