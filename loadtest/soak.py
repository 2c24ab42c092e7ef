"""A long life: mixed requests by the ten thousand, and whether anything is left of them.

While a daemon of its own is at rest, it is looked at: after every few hundred requests, and after
as many connections that ask for little or nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import psutil
from msgspec import Struct

from loadtest.bars import Bar
from loadtest.growth import Holding, growth
from loadtest.image_requests import QUESTION, ask
from loadtest.prompts import prompt_texts
from loadtest.soak_asks import Asks
from loadtest.soak_connects import come_and_go
from loadtest.soak_looks import Look, look_at, n_differing
from loadtest.soak_requests import Ground
from loadtest.soak_setup import SoakSetup
from loadtest.soak_visitors import Tally, Visitor
from runnerd.client import ChatError, ChatMessage, Client, RequestFailed
from runnerd.launcher import launch
from runnerd_protocol.messages import Prompt

N_SLOTS, N_CTX, N_VISITORS = 8, 128, 16
MOST_BYTES_PER_REQUEST = 1024.0
MOST_BETWEEN_LOOKS, LEAST_LOOKS = 500, 10
MOST_TOLD = 20  # kinds of what was not to be expected
# A client shares the cores with the daemon's threads: they had better not spin. What is kept of
# images is small, except for pixels, of which 128 MiB are: 170 pictures.
OPTIONS = ("--image-cache-mib=1", "--image-store-mib=16")
ENVIRONMENT = {"GOMP_SPINCOUNT": "1000"}
QUESTIONS = ("What is a river?", "Name a colour.", "Is the sea deep?", "Count to three.")

Tell = Callable[[str], None]


class SoakLoad(Struct, frozen=True, kw_only=True):
    """What is done: requests, of which the first warm it up, and then connections.

    `n_pictures` are asked about before, so that what is kept of them is full.
    """

    n_pictures: int = 200
    n_requests: int = 20_000
    n_warm_up: int = 2_000
    n_connects: int = 10_000
    seed: int = 1


class Counts(Struct, frozen=True):
    """What became of all requests; of those that were left the daemon's end was not heard."""

    n_asked: int
    n_finished: int
    n_failed: int
    n_answered: int
    n_left: int
    n_cancelled: int
    n_connections: int
    n_endless: int
    n_wrong: int


class Seen(Struct, frozen=True):
    """What was seen of a daemon. `connect_looks` are those after connections."""

    counts: Counts
    looks: list[Look]
    connect_looks: list[Look]
    n_tracebacks: int
    returncode: int
    is_gone: bool


class SoakOutcome(Struct, frozen=True):
    """What was done, everything that was seen, and the bars."""

    load: SoakLoad
    seen: Seen
    bars: list[Bar]

    @property
    def missed(self) -> list[Bar]:
        """The bars that are not met."""
        return [bar for bar in self.bars if not bar.is_met]


async def measure_soak(setup: SoakSetup, load: SoakLoad, tell: Tell) -> SoakOutcome:
    """Start a daemon, ask it for everything, let it stop, and say what was left behind.

    Raises:
        ClientError: the daemon has ended early, and why.
    """
    tally, log = Tally(), _Log()
    with TemporaryDirectory(prefix="loadtest-") as folder:
        path = Path(folder, "socket")
        options = [*OPTIONS, *setup.options, f"--socket={path}"]
        async with launch(
            setup.model,
            slots=N_SLOTS,
            ctx=N_CTX,
            options=options,
            on_line=log.note,
            env=ENVIRONMENT,
        ) as child:
            await child.ready()
            daemon = _Daemon(child.client, child.pid, path)
            try:
                asks = Asks(await _ground(child.client, setup), load.seed)
                if asks.requests.ground.reads_images:
                    for _ in range(load.n_pictures):
                        await ask(child.client, asks.requests.new_picture(), QUESTION)
                looks = await _ask_all(daemon, load, asks, tally, tell)
                connect_looks = await _connect_all(daemon, load, tell)
            except RequestFailed as err:  # we ask for nothing that a daemon could not do
                raise await child.death() from err
            finally:
                for what, n_times in tally.wrong.most_common(MOST_TOLD):
                    tell(f"{n_times} times: {what}")
            died = await child.stop()
    seen = Seen(
        counts=Counts(**{name: getattr(tally, name) for name in Counts.__struct_fields__}),
        looks=looks,
        connect_looks=connect_looks,
        n_tracebacks=log.n_tracebacks,
        returncode=died.returncode,
        is_gone=not psutil.pid_exists(daemon.pid),
    )
    return SoakOutcome(load, seen, soak_bars(load, seen))


def soak_bars(load: SoakLoad, seen: Seen) -> list[Bar]:
    """Hold what was seen against its limits; there are two looks after the warm-up at least."""
    looks = [*seen.looks, *seen.connect_looks]
    held = [look.holding for look in seen.looks]
    bars = _growth_bars("request", [each for each in held if each.n_requests >= load.n_warm_up])
    if seen.connect_looks:
        bars += _growth_bars("connection", [look.holding for look in seen.connect_looks])
    limits = [
        ("requests without an end", seen.counts.n_endless),
        ("answers that were not to be expected", seen.counts.n_wrong),
        ("looks at which it was not at rest", sum(not look.is_at_rest for look in looks)),
        ("looks at which it said something else", n_differing(looks)),
        ("its children that nobody has waited for", max(look.n_zombies for look in looks)),
        ("tracebacks in its log", seen.n_tracebacks),
        ("exit status", abs(seen.returncode)),
        ("processes left behind", int(not seen.is_gone)),
    ]
    return bars + [Bar(name, value, "<=", 0, value <= 0) for name, value in limits]


def _growth_bars(what: str, held: list[Holding]) -> list[Bar]:
    limits = [
        (f"memory per {what}, bytes", growth(held).bytes_per_request, MOST_BYTES_PER_REQUEST),
        (f"more descriptors, by {what}s", _more([each.n_descriptors for each in held]), 0),
        (f"more threads, by {what}s", _more([each.n_threads for each in held]), 0),
    ]
    return [Bar(name, value, "<=", limit, value <= limit) for name, value, limit in limits]


def _more(counts: list[int]) -> int:
    """Return by how many the fewest of the second half are more than those of the first.

    Threads that wait for work come and go; one that is never let go of is there at every look.
    """
    half = len(counts) // 2
    return min(counts[half:]) - min(counts[:half])


class _Log:
    def __init__(self) -> None:
        self.n_tracebacks = 0

    def note(self, line: str) -> None:
        self.n_tracebacks += "Traceback" in line


@dataclass(frozen=True, slots=True)
class _Daemon:
    client: Client
    pid: int
    path: Path

    async def look(self, n_done: int) -> Look:
        return await look_at(self.client, self.pid, n_done)


async def _ask_all(
    daemon: _Daemon, load: SoakLoad, asks: Asks, tally: Tally, tell: Tell
) -> list[Look]:
    looks = [await daemon.look(0)]
    for n_done in _marks(load.n_requests):
        some = islice(asks, n_done - looks[-1].holding.n_requests)
        async with anyio.create_task_group() as visitors:
            for number in range(N_VISITORS):
                seed = n_done * N_VISITORS + number
                visitors.start_soon(Visitor(daemon.path, seed, some, tally).run)
        looks.append(await daemon.look(n_done))
        tell(_progress(looks[-1], load.n_requests, "requests"))
    return looks


async def _connect_all(daemon: _Daemon, load: SoakLoad, tell: Tell) -> list[Look]:
    if not load.n_connects:
        return []
    looks = [await daemon.look(0)]
    for n_done in _marks(load.n_connects):
        n_more = n_done - looks[-1].holding.n_requests
        await come_and_go(daemon.path, load.seed + n_done, n_more)
        looks.append(await daemon.look(n_done))
        tell(_progress(looks[-1], load.n_connects, "connections"))
    return looks


def _marks(n_all: int) -> list[int]:
    """Return after how many it is looked at; the last is all of them."""
    n_between = max(1, min(MOST_BETWEEN_LOOKS, n_all // LEAST_LOOKS))
    return [*range(n_between, n_all, n_between), n_all]


def _progress(look: Look, n_all: int, what: str) -> str:
    held = look.holding
    return (
        f"{held.n_requests} of {n_all} {what}: {held.n_bytes / 2**20:.1f} MiB,"
        f" {held.n_descriptors} descriptors, {held.n_threads} threads"
    )


async def _ground(client: Client, setup: SoakSetup) -> Ground:
    model = await client.model()
    (text,) = prompt_texts(seed=1, n_round=0, n_streams=1, n_prompt=2 * N_CTX)
    chats: list[Prompt] = []
    for question in QUESTIONS:
        try:
            chats.append(await client.chat_prompt([ChatMessage("user", question)]))
        except ChatError:
            break  # this model has no turns
    return Ground(
        n_ctx=model.n_ctx,
        text=text,
        tokens=await client.tokenize(text, add_bos=False),
        chats=chats,
        adapters=model.adapters,
        reads_images=model.n_image_rows > 0,
        knows_schemas=setup.knows_schemas,
    )
