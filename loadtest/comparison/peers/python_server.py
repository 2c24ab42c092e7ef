"""The example server of llama-cpp-python as a system under comparison, over HTTP on loopback.

| Setup and Ask | its settings file and /v1/completions |
|---|---|
| `n_slots` | `n_seq_max` |
| `n_ctx` | `n_ctx`, of all sequences together: `n_slots` times as much |
| `n_batch`, `n_ubatch`, `n_threads` | `n_batch`, `n_ubatch`, `threads` and `threads_batch` |
| `kv_unified` | `kv_unified` |
| `prompt` | token ids, after the begin token that the model wants |
| `sampling` | `temperature`, `top_p`, `seed`; it knows no `top_k` |
| `ignore_eos` | a `logit_bias` that rules the model's end tokens out |
| `cancel_after` | the connection is closed |

It cannot do everything: `json_schema` and `image` fail (only chats have them there). It tells no
token ids: `tokens` are those of the text. Nor does it tell which prompt tokens it has evaluated
for whom: what its counter has grown by is put down to the request that ends next, so that only
sums are right. A chunk of text counts as one token, and where a request has run to its length,
the rest of them as having come at the end.
"""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx
import msgspec
import psutil
from msgspec import Struct

from loadtest.comparison.exchange import Ask, Exchange, PeerUnavailable, Setup
from loadtest.comparison.peers.http import (
    LOOK_AGAIN_S,
    START_S,
    PeerFailed,
    answers,
    connected,
    note_tokens,
    stream_events,
)
from loadtest.comparison.peers.places import existing, places
from loadtest.comparison.peers.process import PeerProcess, running
from loadtest.comparison.peers.servers import HttpPeer, Server, StartServer
from loadtest.comparison.peers.vocabulary import Vocabulary, vocabulary

HOST = "127.0.0.1"
NEVER = -1000.0  # a bias that rules a token out
MEAN_POOLING = 1
N_EVALUATED = "llamacpp:prompt_tokens_total "


class Choice(Struct, frozen=True):
    """A piece of an answer; the last one has a reason."""

    text: str = ""
    finish_reason: str | None = None


class Event(Struct, frozen=True):
    """What comes in one event."""

    choices: list[Choice] = []


class PythonServer(HttpPeer):
    """A server that runs; made by `start_python_server`."""

    def __init__(self, version: str, server: Server, words: Vocabulary, start: StartServer) -> None:
        super().__init__("python-server", version, server, start)
        self._words = words
        self._n_evaluated = 0

    async def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without a begin token."""
        return self._words.tokenize(text)

    async def ask(self, ask: Ask, exchange: Exchange) -> None:
        """Send a request, and write down what comes, as it comes."""
        async with self.concluding(exchange):
            body = _body(ask, self._words)
            take = partial(_take, ask, exchange)
            await stream_events(self.client, "/v1/completions", body, Event, take)
        exchange.tokens = self._words.tokenize(exchange.text)
        await self._account(exchange)

    async def _account(self, exchange: Exchange) -> None:
        """Note what was evaluated since the last time: of requests side by side the sum is right.

        The server counts for all of them together. Nobody accounts for a request that is cut off
        from outside, so the next one has its tokens.
        """
        try:
            lines = (await self.client.get("/metrics")).text.splitlines()
        except httpx.HTTPError:
            return  # it has gone, and the exchange has failed or the next one will
        told = [line.removeprefix(N_EVALUATED) for line in lines if line.startswith(N_EVALUATED)]
        if not told:
            return
        n_evaluated = max(int(float(count)) for count in told)
        exchange.n_evaluated = max(0, n_evaluated - self._n_evaluated)
        self._n_evaluated = max(n_evaluated, self._n_evaluated)

    async def embed(self, inputs: Sequence[Sequence[int]]) -> float:
        """Have inputs embedded in one request; return how many seconds it took."""
        asked = {"model": "", "input": [*map(list, inputs)]}
        return await self.timed_embeddings("/v1/embeddings", asked)


class Start:
    """Starts servers that end with a stack."""

    def __init__(
        self, script: str, packages: str, setup: Setup, folder: Path, stack: AsyncExitStack
    ) -> None:
        self._script = script
        self._packages = packages
        self._setup = setup
        self._folder = folder
        self._stack = stack

    async def __call__(self, *, is_embedder: bool) -> Server:
        """Return a server once it has loaded the model."""
        name = "embedder" if is_embedder else "server"
        settings = self._folder / f"{name}.json"
        content = msgspec.json.encode(_settings(self._setup, is_embedder=is_embedder))
        await anyio.Path(settings).write_bytes(content)
        process = await self._stack.enter_async_context(
            running(
                [sys.executable, self._script, "-C", str(settings)],
                self._folder / f"{name}.log",
                {"PYTHONPATH": self._packages},
            )
        )
        url = f"http://{HOST}:{await _port(process)}"
        client = await self._stack.enter_async_context(connected(url))
        await answers(client, "/healthz", process.check_runs)
        return Server(process, client)


@asynccontextmanager
async def start_python_server(setup: Setup) -> AsyncIterator[PythonServer]:
    """Run the example server of the bindings that are installed.

    Raises:
        PeerUnavailable: its files are not there, or it cannot load the model.
    """
    built = places()
    script, packages = existing(built.python_server), existing(built.python_packages)
    with TemporaryDirectory(prefix="peer-") as folder, vocabulary(setup.model) as words:
        async with AsyncExitStack() as stack:
            start = Start(script, packages, setup, Path(folder), stack)
            yield PythonServer(built.description, await start(is_embedder=False), words, start)


async def _port(process: PeerProcess) -> int:
    """Return the port that the system has given it, once it listens: none is guessed.

    Raises:
        PeerUnavailable: it has ended, or takes too long.
    """
    with anyio.move_on_after(START_S):
        while True:
            process.check_runs()
            with suppress(psutil.NoSuchProcess):
                for connection in psutil.Process(process.pid).net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        port: int = connection.laddr.port
                        return port
            await anyio.sleep(LOOK_AGAIN_S)
    raise PeerUnavailable(f"the example server has not listened within {START_S:g} s")


def _settings(setup: Setup, *, is_embedder: bool) -> dict[str, object]:
    model = {
        "path": str(setup.model),
        "n_seq_max": setup.n_slots,
        "n_ctx": setup.n_slots * setup.n_ctx,
        "n_batch": setup.n_batch,
        "n_ubatch": setup.n_ubatch,
        "threads": setup.n_threads,
        "threads_batch": setup.n_threads,
        "kv_unified": setup.kv_unified,
    }
    if is_embedder:
        model |= {"embedding": True, "pooling_type": MEAN_POOLING}
    return {"server": {"host": HOST, "port": 0}, "model": model}


def _body(ask: Ask, words: Vocabulary) -> dict[str, object]:
    if ask.json_schema is not None or ask.image is not None:
        raise PeerFailed("completions have neither schemas nor images there")
    return {
        "prompt": [*words.begin, *ask.prompt],
        "max_tokens": ask.max_tokens,
        "stream": True,
        "temperature": ask.sampling.temperature,
        "top_p": ask.sampling.top_p,
        "seed": ask.sampling.seed,
        "logit_bias": dict.fromkeys(map(str, words.ends), NEVER) if ask.ignore_eos else None,
    }


def _take(ask: Ask, exchange: Exchange, event: Event) -> bool:
    for choice in event.choices:
        note_tokens(exchange, 1 if choice.text else 0)
        exchange.text += choice.text
        if choice.finish_reason is not None:
            exchange.ended = choice.finish_reason
    if exchange.ended == "length":
        note_tokens(exchange, ask.max_tokens - exchange.n_generated)
    elif ask.cancel_after and exchange.n_generated >= ask.cancel_after and not exchange.ended:
        exchange.ended = "cancelled"
        return False
    return True
