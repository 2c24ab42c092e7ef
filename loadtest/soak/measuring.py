"""A long life: mixed requests by the ten thousand, and whether anything is left of them.

While a daemon of its own is at rest, it is looked at: after every few hundred requests, and after
as many connections that ask for little or nothing.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import psutil

from loadtest.console import Tell
from loadtest.images.requests import QUESTION, ask
from loadtest.prompts import prompt_texts
from loadtest.soak.asks import Asks
from loadtest.soak.connects import come_and_go
from loadtest.soak.daemon_log import DaemonLog
from loadtest.soak.looks import Look, look_at
from loadtest.soak.outcome import Counts, Seen, SoakLoad, SoakOutcome, soak_bars
from loadtest.soak.requests import Ground
from loadtest.soak.setup import SoakSetup
from loadtest.soak.visitors import Tally, Visitor
from runnerd.client import ChatError, ChatMessage, Client, RequestFailed
from runnerd.launcher import launch
from runnerd_protocol.messages import Prompt

N_SLOTS, N_CTX, N_VISITORS = 8, 128, 16
MOST_BETWEEN_LOOKS, LEAST_LOOKS = 500, 10
MOST_TOLD = 20  # kinds of what was not to be expected
# A client shares the cores with the daemon's threads: they had better not spin. What is kept of
# images is small, except for pixels, of which 128 MiB are: 170 pictures.
OPTIONS = ("--image-cache-mib=1", "--image-store-mib=16")
ENVIRONMENT = {"GOMP_SPINCOUNT": "1000"}
QUESTIONS = ("What is a river?", "Name a colour.", "Is the sea deep?", "Count to three.")


async def measure_soak(setup: SoakSetup, load: SoakLoad, tell: Tell) -> SoakOutcome:
    """Start a daemon, ask it for everything, let it stop, and say what was left behind.

    Raises:
        ClientError: the daemon has ended early, and why.
    """
    tally, log = Tally(), DaemonLog()
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
            daemon = _Daemon(child.client, child.pid, path, log)
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


@dataclass(frozen=True, slots=True)
class _Daemon:
    client: Client
    pid: int
    path: Path
    log: DaemonLog

    async def look(self, n_done: int) -> Look:
        return await look_at(self.client, self.log, self.pid, n_done)


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
        f" {held.n_descriptors} descriptors, {held.n_threads} threads, {look.n_tasks} tasks"
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
