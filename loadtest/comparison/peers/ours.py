"""Our daemon as a system under comparison: a child of ours, spoken to by our own client.

| Setup and Ask | `runnerd serve` and `Generate` |
|---|---|
| `n_slots`, `n_ctx` | `--slots`, `--ctx` |
| `n_batch`, `n_ubatch`, `n_threads` | `--batch`, `--ubatch`, `--threads` |
| `kv_unified` | `--kv=unified`, else `split` |
| `projector` | `--mmproj` |
| `sampling` | `temperature`, `top_k`, `top_p`, `seed`; `min_p` off |
| `ignore_eos`, `json_schema` | `ignore_end`, `json_schema` |
| `cancel_after` | the stream's block is left, which cancels |

Everything else is as it comes: caches, flash attention, and the pace that is kept.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from time import perf_counter

import psutil

from loadtest.comparison.exchange import Ask, Exchange, PeerUnavailable, Setup, Usage
from loadtest.comparison.peers.places import BINDINGS
from loadtest.comparison.peers.process import usage_of
from runnerd.client import Client, ClientError
from runnerd.client_options import GenerateOptions
from runnerd.launcher import ChildDied, Runner, RunnerStalled, StartFailed, launch
from runnerd.prompt_parts import PromptPart
from runnerd.streams import GenerationStream
from runnerd_protocol.messages import Finished, Prompt, TokensPart

ENDED = {"stop": "stop", "stop_sequence": "stop", "length": "length", "context": "length"}


class OurDaemon:
    """A daemon that runs as our child."""

    def __init__(self, runner: Runner, version_text: str) -> None:
        self.name = "ours"
        self.version = version_text
        self.command: Sequence[str] = psutil.Process(runner.pid).cmdline()
        self._runner = runner

    @property
    def client(self) -> Client:
        """The connection, for what other systems have no call for."""
        return self._runner.client

    async def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text, without a begin token."""
        return await self.client.tokenize(text, add_bos=False)

    async def ask(self, ask: Ask, exchange: Exchange) -> None:
        """Send a request, and write down what comes, as it comes."""
        parts: list[PromptPart] = [TokensPart(list(ask.prompt))]
        if ask.image is not None:
            parts.insert(0, ask.image)
        try:
            async with self.client.generate(parts=parts, **_options(ask)) as stream:
                await _follow(stream, ask, exchange)
        except ClientError as err:
            exchange.ended, exchange.error = "failed", str(err)
        exchange.ended_at = perf_counter()

    async def embed(self, inputs: Sequence[Sequence[int]]) -> float:
        """Have inputs embedded in one request; return how many seconds it took."""
        prompts: list[Prompt] = [[TokensPart(list(tokens))] for tokens in inputs]
        started_at = perf_counter()
        await self.client.embed(prompts, pooling="mean")
        return perf_counter() - started_at

    async def usage(self) -> Usage:
        """Return what its processes have used."""
        return usage_of([self._runner.pid])


@asynccontextmanager
async def start_ours(setup: Setup, options: Sequence[str] = ()) -> AsyncIterator[OurDaemon]:
    """Run a daemon; `options` are further ones of `runnerd serve`.

    Raises:
        PeerUnavailable: it cannot load the model, or cannot be started.
        ChildDied: it has ended while it was in use.
    """
    is_ready = False
    try:
        async with launch(
            str(setup.model),
            slots=setup.n_slots,
            ctx=setup.n_ctx,
            options=[*_serve_options(setup), *options],
        ) as runner:
            await runner.ready()
            is_ready = True
            engine = f"{BINDINGS} {version(BINDINGS)}"
            yield OurDaemon(runner, f"runnerd {version('runnerd')}, {engine}")
    except (ChildDied, RunnerStalled, StartFailed) as err:
        if is_ready:
            raise
        raise PeerUnavailable(f"our daemon cannot run here: {err}") from err


def _serve_options(setup: Setup) -> list[str]:
    options = [
        f"--batch={setup.n_batch}",
        f"--ubatch={setup.n_ubatch}",
        f"--threads={setup.n_threads}",
        f"--kv={'unified' if setup.kv_unified else 'split'}",
    ]
    return options if setup.projector is None else [*options, f"--mmproj={setup.projector}"]


def _options(ask: Ask) -> GenerateOptions:
    return GenerateOptions(
        max_tokens=ask.max_tokens,
        temperature=ask.sampling.temperature,
        top_k=ask.sampling.top_k,
        top_p=ask.sampling.top_p,
        min_p=0.0,
        seed=ask.sampling.seed,
        ignore_end=ask.ignore_eos,
        json_schema=ask.json_schema,
        return_tokens=True,
    )


async def _follow(stream: GenerationStream, ask: Ask, exchange: Exchange) -> None:
    async for delta in stream:
        exchange.arrivals.append((perf_counter(), delta.n_tokens))
        exchange.tokens += delta.tokens
        exchange.text += delta.text
        if ask.cancel_after and exchange.n_generated >= ask.cancel_after:
            exchange.ended = "cancelled"
            return
    assert stream.finished is not None, "a stream that ends has a last message"
    _conclude(exchange, stream.finished)


def _conclude(exchange: Exchange, finished: Finished) -> None:
    n_textless = finished.n_generated - exchange.n_generated  # of which no delta has told
    if n_textless > 0:
        exchange.arrivals.append((perf_counter(), n_textless))
    exchange.n_evaluated = finished.n_prompt - finished.n_cached
    exchange.ended = ENDED.get(finished.reason, "failed")
    if exchange.ended == "failed":
        exchange.error = f"it was ended: {finished.reason}"
