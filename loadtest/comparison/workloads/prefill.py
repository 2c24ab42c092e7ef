"""Long prompts: who has to wait for them, and which of their tokens are evaluated at all."""

import anyio

from loadtest.comparison.exchange import Ask, Exchange, Peer
from loadtest.comparison.workloads.asking import Prompts, ask_together, begin, generating

N_STREAMS, STREAM_PROMPT = 4, 128
ENDLESS = 3000  # tokens: a stream is to outlast all prompts, and is cancelled after them
N_ANSWER = 32
SHORT_PROMPT = 20
SHORT_AFTER_S = 0.5
N_TAIL = 20


async def long_behind_short(peer: Peer, seed: int, n_long: int) -> list[Exchange]:
    """Streams generate, a long prompt comes, and half a second later a short one.

    The short one shows whether it has to wait for the long one, the streams whether they stop
    meanwhile, the long one what that costs it.
    """
    prompts = Prompts(peer, seed)
    streams = await _streams(prompts)
    long = Ask(role="long", prompt=await prompts.new(n_long), max_tokens=N_ANSWER)
    short = Ask(role="short", prompt=await prompts.new(SHORT_PROMPT), max_tokens=N_ANSWER)
    async with generating(peer, streams) as seen, anyio.create_task_group() as tasks:
        of_long = begin(long)
        tasks.start_soon(peer.ask, long, of_long)
        await anyio.sleep(SHORT_AFTER_S)
        of_short = begin(short)
        tasks.start_soon(peer.ask, short, of_short)
    return [*seen, of_long, of_short]


async def two_longs(peer: Peer, seed: int, n_long: int) -> list[Exchange]:
    """Streams generate, and two long prompts come at once: the streams must not stop for them."""
    prompts = Prompts(peer, seed)
    streams = await _streams(prompts)
    longs = [
        Ask(role="long", prompt=prompt, max_tokens=N_ANSWER)
        for prompt in await prompts.several(2, n_long)
    ]
    async with generating(peer, streams) as seen:
        of_longs = await ask_together(peer, longs)
    return [*seen, *of_longs]


async def shared_prefix(peer: Peer, seed: int, n_requests: int, n_prefix: int) -> list[Exchange]:
    """Requests at once that all begin alike: whether that beginning is evaluated once, or often."""
    prompts = Prompts(peer, seed)
    prefix = await prompts.new(n_prefix)
    return await ask_together(
        peer,
        [
            Ask(role="request", prompt=[*prefix, *tail], max_tokens=N_ANSWER)
            for tail in await prompts.several(n_requests, N_TAIL)
        ],
    )


async def _streams(prompts: Prompts) -> list[Ask]:
    return [
        Ask(role="stream", prompt=prompt, max_tokens=ENDLESS)
        for prompt in await prompts.several(N_STREAMS, STREAM_PROMPT)
    ]
