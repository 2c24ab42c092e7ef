"""llama-server as a system under comparison, over HTTP on a socket file of its own.

| Setup and Ask | llama-server and its /completion |
|---|---|
| `n_slots` | `-np` |
| `n_ctx` | `-c`, of all slots together: `n_slots` times as much |
| `n_batch`, `n_ubatch`, `n_threads` | `-b`, `-ub`, `-t` and `-tb` |
| `kv_unified` | `--kv-unified`, else `--no-kv-unified` |
| `projector`, `image` | `--mmproj`, `multimodal_data` at a marker before the prompt's text |
| `prompt` | token ids, after the begin token that the model wants |
| `sampling` | `temperature`, `top_k`, `top_p`, `seed`; `min_p` off, and in this order |
| `ignore_eos`, `json_schema` | as they are called there, too |
| `cancel_after` | the connection is closed |

Prompts are cached (`cache_prompt`), slots chosen by the server; what is not named here is as it
comes. Tokens are counted as the server counts them. Their ids come only with text, without those
of a character that takes several: where some are missing, all are those of the whole text.
"""

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from msgspec import Struct
from msgspec.structs import replace

from loadtest.comparison.exchange import Ask, Exchange, PeerUnavailable, Setup
from loadtest.comparison.peers.http import (
    PeerFailed,
    answers,
    connected,
    note_tokens,
    post,
    stream_events,
)
from loadtest.comparison.peers.places import existing, places
from loadtest.comparison.peers.process import running
from loadtest.comparison.peers.servers import HttpPeer, Server, StartServer

MARKER = "<__image__>"
ENDED = {"limit": "length", "eos": "stop", "word": "stop"}
EMBEDDING = ("--embeddings", "--pooling", "mean")


class Timings(Struct, frozen=True):
    """Counts of a request that has ended."""

    prompt_n: int = 0


class Fault(Struct, frozen=True):
    """Why a request was given up."""

    message: str = ""


class Event(Struct, frozen=True):
    """A piece of an answer, or its end."""

    content: str = ""
    tokens: list[int] = []
    tokens_predicted: int = 0
    stop: bool = False
    stop_type: str = ""
    timings: Timings | None = None
    error: Fault | None = None


class Tokenized(Struct, frozen=True):
    """Tokens of a text."""

    tokens: list[int]


class Detokenized(Struct, frozen=True):
    """The text of tokens."""

    content: str


class LlamaServer(HttpPeer):
    """A server that runs; made by `start_llama_server`."""

    def __init__(
        self, name: str, version: str, server: Server, begin: Sequence[int], start: StartServer
    ) -> None:
        super().__init__(name, version, server, start)
        self._begin = begin

    async def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without a begin token."""
        asked = {"content": text, "add_special": False, "parse_special": False}
        return (await post(self.client, "/tokenize", asked, Tokenized)).tokens

    async def ask(self, ask: Ask, exchange: Exchange) -> None:
        """Send a request, and write down what comes, as it comes."""
        async with self.concluding(exchange):
            body = _body(ask, await self._prompt(ask))
            take = partial(_take, ask, exchange)
            await stream_events(self.client, "/completion", body, Event, take)
        if exchange.ended != "failed" and len(exchange.tokens) < exchange.n_generated:
            with suppress(PeerFailed):  # whoever asks next is told
                exchange.tokens = await self.tokenize(exchange.text)

    async def _prompt(self, ask: Ask) -> object:
        if ask.image is None:
            return [*self._begin, *ask.prompt]
        asked = {"tokens": list(ask.prompt)}
        text = (await post(self.client, "/detokenize", asked, Detokenized)).content
        encoded = base64.b64encode(await anyio.Path(ask.image).read_bytes()).decode()
        return {"prompt_string": MARKER + text, "multimodal_data": [encoded]}

    async def embed(self, inputs: Sequence[Sequence[int]]) -> float:
        """Have inputs embedded in one request; return how many seconds it took."""
        return await self.timed_embeddings("/embedding", {"content": [*map(list, inputs)]})


class Start:
    """Starts servers that end with a stack."""

    def __init__(self, program: Path, setup: Setup, folder: Path, stack: AsyncExitStack) -> None:
        self._program = program
        self._setup = setup
        self._folder = folder
        self._stack = stack

    async def __call__(self, *, is_embedder: bool) -> Server:
        """Return a server once it has loaded the model."""
        name, options = ("embedder", EMBEDDING) if is_embedder else ("server", ())
        socket = self._folder / f"{name}.sock"
        process = await self._stack.enter_async_context(
            running(
                [*_command(self._program, self._setup, socket), *options],
                self._folder / f"{name}.log",
                {"LLAMA_MEDIA_MARKER": MARKER},
            )
        )
        client = await self._stack.enter_async_context(connected("http://peer", str(socket)))
        await answers(client, "/health", process.check_runs)
        return Server(process, client)


@asynccontextmanager
async def start_llama_server(
    setup: Setup, name: str = "llama-server", n_batch: int | None = None
) -> AsyncIterator[LlamaServer]:
    """Run the server that was built; `n_batch` takes the place of the setup's.

    Raises:
        PeerUnavailable: it is not built, or cannot load the model.
    """
    built = places()
    program = Path(existing(built.llama_server))
    async with llama_server_of(program, setup, name, built.description, n_batch) as peer:
        yield peer


@asynccontextmanager
async def llama_server_of(
    program: Path, setup: Setup, name: str, version: str, n_batch: int | None = None
) -> AsyncIterator[LlamaServer]:
    """Run a server from a program's file; otherwise as `start_llama_server`."""
    if n_batch is not None:
        setup = replace(setup, n_batch=n_batch, n_ubatch=min(setup.n_ubatch, n_batch))
    with TemporaryDirectory(prefix="peer-") as folder:  # short: a socket's path is
        async with AsyncExitStack() as stack:
            start = Start(program, setup, Path(folder), stack)
            server = await start(is_embedder=False)
            try:
                asked = {"content": "", "add_special": True}
                begin = (await post(server.client, "/tokenize", asked, Tokenized)).tokens
            except PeerFailed as err:
                raise PeerUnavailable(f"{name} does not tokenize: {err}") from err
            yield LlamaServer(name, version, server, begin, start)


def _command(program: Path, setup: Setup, socket: Path) -> list[str]:
    figures = {
        "-np": setup.n_slots,
        "-c": setup.n_slots * setup.n_ctx,
        "-b": setup.n_batch,
        "-ub": setup.n_ubatch,
        "-t": setup.n_threads,
        "-tb": setup.n_threads,
    }
    return [
        *(str(program), "-m", str(setup.model), "--host", str(socket)),
        *(word for option, value in figures.items() for word in (option, str(value))),
        "--kv-unified" if setup.kv_unified else "--no-kv-unified",
        *(() if setup.projector is None else ("--mmproj", str(setup.projector))),
        *("--no-ui", "--offline"),
    ]


def _body(ask: Ask, prompt: object) -> dict[str, object]:
    body: dict[str, object] = {
        "prompt": prompt,
        "n_predict": ask.max_tokens,
        "stream": True,
        "return_tokens": True,
        "cache_prompt": True,
        "ignore_eos": ask.ignore_eos,
        "temperature": ask.sampling.temperature,
        "top_k": ask.sampling.top_k,
        "top_p": ask.sampling.top_p,
        "min_p": 0.0,
        "seed": ask.sampling.seed,
        "samplers": ["top_k", "top_p", "temperature"],
    }
    return body if ask.json_schema is None else body | {"json_schema": ask.json_schema}


def _take(ask: Ask, exchange: Exchange, event: Event) -> bool:
    if event.error is not None:
        raise PeerFailed(event.error.message)
    note_tokens(exchange, event.tokens_predicted - exchange.n_generated)
    exchange.tokens += event.tokens
    exchange.text += event.content
    if event.stop:
        exchange.ended = ENDED.get(event.stop_type, "failed")
        exchange.n_evaluated = None if event.timings is None else event.timings.prompt_n
        return True
    if ask.cancel_after and exchange.n_generated >= ask.cancel_after:
        exchange.ended = "cancelled"
        return False
    return True
